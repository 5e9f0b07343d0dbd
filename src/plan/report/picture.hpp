// SPDX-License-Identifier: Apache-2.0
// Who computes which cell of a document's attention matrix, in characters.
#pragma once

#include <string>

#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

/// Pictures of the longest documents by text positions, side by side: a digit or letter for each
/// rank, "." for masked cells, "-" for queries of another half; empty with more than 36 ranks.
std::string draw(const Plan& plan, int first_document);

}  // namespace cadenza::plan
