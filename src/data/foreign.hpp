// SPDX-License-Identifier: Apache-2.0
// Detects files of other programs: they are no corpus, although any bytes could be read as tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cadenza/config/experiment.hpp"

namespace cadenza::data {

/// Refuses a file whose bytes show that it is an archive, a table, tensors or an index of another
/// program, text where token ids are expected, or the reverse.
/// @param source  text or tokens
/// @throws Error(data) that says what the file is and what to give instead
void refuse_foreign(const std::string& path, config::Source source);

/// The index of a Megatron-LM dataset and the type of tokens that it states: "int32".
struct MegatronIndex {
  std::string path;
  std::string type;
};

/// The index PREFIX.idx beside a dataset's PREFIX.bin; nothing where there is none.
std::optional<MegatronIndex> megatron_index(const std::string& bin);

}  // namespace cadenza::data
