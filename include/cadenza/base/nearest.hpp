// SPDX-License-Identifier: Apache-2.0
// What was probably meant by a word with a typing error.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cadenza {

/// The candidate with the smallest edit distance to `word`, the first of several; not empty.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace cadenza
