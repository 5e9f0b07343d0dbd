// SPDX-License-Identifier: Apache-2.0
// Who tells whom what, so that an index of sparse attention comes about: the rounds of a plan.
#pragma once

#include <vector>

#include "cadenza/plan/index.hpp"
#include "plan/workload/homes.hpp"

namespace cadenza::plan {

/// Bytes of a move of an index round.
/// @param tokens  observed, observed_keys, mass: as the plan counts them; pattern: in the text
std::int64_t index_bytes(const Workload& workload, Tensor what, int document, Range tokens,
                         Range heads);

/// Fills the index rounds of a forward plan, whose tasks say who needs which pattern; none where
/// all documents are dense. Its totals are to be added up again.
void add_index_rounds(Plan& plan);

}  // namespace cadenza::plan
