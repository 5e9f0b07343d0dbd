// SPDX-License-Identifier: Apache-2.0
// Files of other programs, which are no corpus although any bytes could be read as tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cadenza/config/experiment.hpp"

namespace cadenza::data {

/// Refuses a file that its bytes show to be another program's: an archive, a table, tensors, an
/// index, and text where token ids are due or the reverse.
/// @param source  text or tokens
/// @throws Error(data) with what the file is, and what to give instead
void refuse_foreign(const std::string& path, config::Source source);

/// The type of the tokens of a Megatron-LM dataset as its index says it: "int32".
struct MegatronIndex {
  std::string path;
  std::string type;
};

/// The index beside a dataset's PREFIX.bin, PREFIX.idx; nothing where there is none.
std::optional<MegatronIndex> megatron_index(const std::string& bin);

}  // namespace cadenza::data
