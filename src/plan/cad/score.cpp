// SPDX-License-Identifier: Apache-2.0
#include "plan/cad/score.hpp"

#include <cmath>

namespace cadenza::plan {

// DistCA (arXiv 2510.18121), appendix B, in its head-tail form: the head gives up its innermost n
// queries, so many that the moved part of its area is the moved part of the item's; their mirror
// images see all keys but those behind the head's remaining queries. Q of the head, K and V count;
// what is already there counts as well.
double Score::paper(const DocumentShard& shard, Range item, Weight item_cost,
                    const Offer& offer) const {
  Range head = shard.head_of(item);
  if (head.empty()) head = shard.tail_of(item);  // a single block
  const auto keys = static_cast<double>(head.end);
  const auto queries = static_cast<double>(head.size());
  const double share = static_cast<double>(offer.wanted) / static_cast<double>(item_cost);
  const double area = share * queries * (2 * keys - queries);
  const double moved = keys - std::sqrt(std::max(0.0, keys * keys - area));
  const double context = static_cast<double>(shard.span() - 1) - (keys - moved);
  const double elements = moved * query_elements_ + std::max(context, moved) * key_elements_;
  return static_cast<double>(offer.wanted) / elements;
}

// What DistCA's code computes: half of the moved queries, and all keys of the document.
double Score::public_code(const DocumentShard& shard, const Offer& offer) const {
  const auto span = static_cast<double>(shard.span());
  const double wanted = static_cast<double>(offer.wanted) / static_cast<double>(shard.mask.unit());
  return 1.0 / (query_elements_ / span + key_elements_ * span / wanted);
}

}  // namespace cadenza::plan
