// SPDX-License-Identifier: Apache-2.0
// What was probably meant by a word with a typing error.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cadenza {

/// What other programs call a candidate is that candidate; else the one with the smallest edit
/// distance to `word`, the first of several; empty where that changes half of the letters or more:
/// then it is another word, and a wrong hint. Capital letters count as small ones.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// ", nearest is 'layers'", for after what was found; empty where nothing is near.
std::string nearest_hint(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace cadenza
