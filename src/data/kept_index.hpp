// SPDX-License-Identifier: Apache-2.0
// Indexes of large files of tokens, kept so that they are not scanned at every start.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "data/megatron_index.hpp"
#include "data/token_file.hpp"

namespace cadenza::data {

/// Documents of a file without an index of its own, by an index that is kept or by their ends.
struct FoundDocuments {
  std::optional<MegatronIndex> index = std::nullopt;
  std::vector<std::int64_t> ends =
      {};  ///< tokens of the file up to the end of each, the last one too
};

/// Finds the documents of `files`, which end after each token `end` or with their file, and checks
/// all tokens. The index of a large file is made once, in the user's cache folder (CADENZA_CACHE,
/// or cadenza in XDG_CACHE_HOME or ~/.cache), under a name that changes with the file's path, size
/// and times, `end` and the vocabulary. Threads, and processes that start together, share the files
/// among them.
/// @throws Error(data) at a token outside the vocabulary
std::vector<FoundDocuments> find_documents(const std::vector<const TokenFile*>& files, Token end,
                                           const ScanProgress& progress);

}  // namespace cadenza::data
