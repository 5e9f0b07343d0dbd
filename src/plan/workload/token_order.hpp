// SPDX-License-Identifier: Apache-2.0
// The mask in the order in which a plan counts tokens (plan::TokenOrder).
#pragma once

#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

/// Stripe of a document that has a token; 0 in the order of the text.
std::int64_t stripe_of(const TokenOrder& order, std::int64_t length, std::int64_t token);

/// The keys among `tokens` that some query of `q` sees.
std::vector<Range> seen_keys(const TokenOrder& order, std::int64_t length, Range q, Range tokens);

/// Rectangles of one query stripe and one key stripe with one rule each. Queries of one stripe see
/// the keys of another through a staircase whose steps are `order.run` wide: steps of one token are
/// a diagonal; wider ones are one rectangle per run of queries, with all keys before it.
/// Their masks are the document's; they cover what the document's mask allows of q x k and hold no
/// row or column at their edge that sees nothing.
std::vector<Task> masked_tasks(const TokenOrder& order, std::int64_t length, const Task& rectangle);

/// Pairs that the document's mask allows for the queries `q`, with all keys, for one head.
std::int64_t mask_pairs(const TokenOrder& order, std::int64_t length, Range q);

/// Whether the rule of a task allows in its rectangle exactly what the document's mask allows.
bool is_masked(const TokenOrder& order, std::int64_t length, const Task& task);

}  // namespace cadenza::plan
