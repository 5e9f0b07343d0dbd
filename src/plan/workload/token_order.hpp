// SPDX-License-Identifier: Apache-2.0
// The mask in the order in which a plan counts tokens (plan::TokenOrder).
#pragma once

#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

/// Stripe of a document that has a token; 0 in the order of the text.
std::int64_t stripe_of(const TokenOrder& order, std::int64_t length, std::int64_t token);

/// Rectangles of one query stripe and one key stripe with one band each. Queries of one stripe see
/// the keys of another through staircases whose steps are `order.run` wide: steps of one token are
/// a diagonal; wider ones are cut where an edge of the mask comes to another run.
/// Their masks are the document's; they cover what the document's mask allows of `rectangle` and
/// hold no row or column at their edge that sees nothing.
std::vector<Task> masked_tasks(const Workload& workload, const Task& rectangle);

/// Pairs that the document's mask allows for the queries `q`, with all keys, for one head.
std::int64_t mask_pairs(const Workload& workload, int document, Range q);

/// Whether the band of a task allows in its rectangle exactly what the document's mask allows, at
/// the positions that the mask gives its queries.
bool is_masked(const Workload& workload, const Task& task);

}  // namespace cadenza::plan
