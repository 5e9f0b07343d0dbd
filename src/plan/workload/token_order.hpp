// SPDX-License-Identifier: Apache-2.0
// Masks in the order in which a plan counts tokens (plan::TokenOrder).
#pragma once

#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

/// The stripe of a token, given by its count; 0 in the order of the text.
std::int64_t stripe_of(const TokenOrder& order, std::int64_t length, std::int64_t token);

/// Tasks that cover exactly the pairs of `rectangle` that the document's mask allows. Each has one
/// query stripe, one key stripe and one band, and no row or column at its edge without an allowed
/// pair. Between stripes the mask is a staircase with steps of `order.run` tokens: steps of one
/// token are a diagonal, wider ones are cut where an edge of the mask enters another run.
std::vector<Task> masked_tasks(const Workload& workload, const Task& rectangle);

/// Number of pairs that the document's mask allows to queries `q`, with all keys, for one head.
std::int64_t mask_pairs(const Workload& workload, int document, Range q);

/// Whether the band of a task allows in its rectangle exactly the pairs of the document's mask, at
/// the positions that the mask gives its queries.
bool is_masked(const Workload& workload, const Task& task);

}  // namespace cadenza::plan
