// SPDX-License-Identifier: Apache-2.0
// Which keys there are, and which one was probably meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "value.hpp"

namespace cadenza::config {

/// The candidate with the smallest edit distance to `word`, the first of several; not empty.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// Throws Error(usage) for the first key, top down, that a `File` (Experiment, Machine) does not
/// know; it names the nearest valid one and all of its block.
template <typename File>
void check_keys(const Value& root);

}  // namespace cadenza::config
