// SPDX-License-Identifier: Apache-2.0
// Detects files of other programs: they are no corpus, although any bytes could be read as tokens.
#pragma once

#include <string>

#include "cadenza/config/experiment.hpp"

namespace cadenza::data {

/// Refuses a file whose bytes show that it is an archive, a table, tensors or an index of another
/// program, text where token ids are expected, or the reverse.
/// @param source  text or tokens
/// @throws Error(data) that says what the file is and what to give instead
void refuse_foreign(const std::string& path, config::Source source);

}  // namespace cadenza::data
