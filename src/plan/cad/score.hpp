// SPDX-License-Identifier: Apache-2.0
// attention.priority: the query-key pairs that a move balances per byte it costs.
#pragma once

#include "cadenza/config/experiment.hpp"
#include "plan/cad/document_shard.hpp"
#include "plan/cad/residency.hpp"

namespace cadenza::plan {

/// A part of what an item has, on its way from one server to another.
struct Offer {
  Range pairs;        ///< the inner ones that move
  Weight cost = 0;    ///< of `pairs`
  Weight wanted = 0;  ///< cost that giver and receiver could exchange; at least `cost`
};

class Score {
 public:
  Score(config::Priority priority, const AttentionShape& shape, const Residency& residency)
      : priority_(priority),
        residency_(residency),
        query_elements_(static_cast<double>(shape.heads) * shape.head_dim),
        key_elements_(2.0 * shape.kv_heads * shape.head_dim) {}

  /// Whether rows that are already at the destination change the judgement.
  bool sees_residents() const { return priority_ == config::Priority::resident; }

  /// The gain where nothing of the document is at the destination.
  /// @param item  pairs of the part that the giver has, and their cost
  double gain(const DocumentShard& shard, Range item, Weight item_cost, const Offer& offer) const {
    switch (priority_) {
      case config::Priority::resident:
        return elsewhere(shard, offer);
      case config::Priority::paper:
        return paper(shard, item, item_cost, offer);
      case config::Priority::public_code:
        break;
    }
    return public_code(shard, offer);
  }

  /// `resident`, the destination known.
  double gain_at(Rank to, const DocumentShard& shard, const Offer& offer) const {
    const std::int64_t bytes = residency_.bytes(
        to, shard.document, {shard.head_of(offer.pairs), shard.tail_of(offer.pairs)});
    return per_byte(offer.cost, bytes);
  }

 private:
  static double per_byte(Weight cost, std::int64_t bytes) {
    return static_cast<double>(cost) / static_cast<double>(std::max<std::int64_t>(1, bytes));
  }
  double elsewhere(const DocumentShard& shard, const Offer& offer) const {
    const Range head = shard.head_of(offer.pairs);
    const Range tail = shard.tail_of(offer.pairs);
    const std::int64_t rows = head.size() + tail.size();
    return per_byte(offer.cost, rows * residency_.query_bytes() +
                                    shard.keys(offer.pairs) * residency_.key_bytes());
  }
  double paper(const DocumentShard& shard, Range item, Weight item_cost, const Offer& offer) const;
  double public_code(const DocumentShard& shard, const Offer& offer) const;

  config::Priority priority_;
  const Residency& residency_;
  double query_elements_;  // of Q, a row
  double key_elements_;    // of K and V, a row
};

}  // namespace cadenza::plan
