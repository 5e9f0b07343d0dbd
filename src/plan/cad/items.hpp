// SPDX-License-Identifier: Apache-2.0
// Scores and candidates of CAD's first phase. A score is the number of query-key pairs that a move
// balances per byte that it costs, judged by attention.priority.
#pragma once

#include <cstdint>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/config/experiment.hpp"
#include "plan/assemble.hpp"
#include "plan/cad/document_shard.hpp"
#include "plan/cad/loads.hpp"
#include "plan/cad/residency.hpp"

namespace cadenza::plan {

/// The part of an item that may move from one server to another.
struct Offer {
  Range pairs;        ///< the inner pairs that move
  Weight cost = 0;    ///< of `pairs`
  Weight wanted = 0;  ///< cost that giver and receiver want to exchange; at least `cost`
};

class Score {
 public:
  Score(config::Priority priority, const AttentionShape& shape, const Residency& residency)
      : priority_(priority),
        residency_(residency),
        query_elements_(static_cast<double>(shape.heads) * shape.head_dim),
        key_elements_(2.0 * shape.kv_heads * shape.head_dim) {}

  /// Whether rows that are already at the destination raise the gain.
  bool sees_residents() const { return priority_ == config::Priority::resident; }

  /// The gain of a move to a server that has nothing of the document.
  /// @param item  all pairs of the giver's item, which cost `item_cost`
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

  /// At least the gain of every offer of the item that costs at most `limit`, for a server that has
  /// nothing of the document; without searching the largest of them.
  double most(const DocumentShard& shard, Range item, Weight limit) const {
    if (priority_ != config::Priority::resident || !shard.mask.is_plain())
      return std::numeric_limits<double>::infinity();
    // All pairs cost a block of `span`, two may be short.
    const auto cost = static_cast<double>(limit), span = static_cast<double>(shard.span());
    const auto block = static_cast<double>(shard.block);
    const double rows = std::max(0.0, 2 * cost / span - 4 * block);
    const auto outer = static_cast<double>(
        shard.tail.begin +
        (DocumentShard::blocks(shard.tail, shard.block) - item.end) * shard.block);
    const double keys = outer + std::max(0.0, cost / span - 2 * block);
    const double bytes = rows * static_cast<double>(residency_.row_bytes()) +
                         keys * static_cast<double>(residency_.key_bytes());
    return cost / std::max(1.0, bytes);
  }

  /// The gain of a move to server `to` by priority `resident`.
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
    return per_byte(offer.cost, rows * residency_.row_bytes() +
                                    shard.keys(offer.pairs) * residency_.key_bytes());
  }
  double paper(const DocumentShard& shard, Range item, Weight item_cost, const Offer& offer) const;
  double public_code(const DocumentShard& shard, const Offer& offer) const;

  config::Priority priority_;
  const Residency& residency_;
  double query_elements_;  // elements of a row of Q
  double key_elements_;    // elements of a row of K and V
};

// --- Items: the pairs of each server while CAD balances, and the search for the best move ---

enum class Sources {
  must,        ///< above the tolerance, or outside the pool with work left
  above_mean,  ///< above the server's share, or outside the pool
  outside,     ///< outside the pool
};

struct Candidate {
  int item = -1;
  Offer offer;
  double gain = 0;  ///< query-key pairs balanced per byte moved
};

class Items {
 public:
  /// @param offer_nothing  whether empty offers compete, like in DistCA's code, which stops where
  ///                       one wins
  Items(const Workload& workload, const std::vector<DocumentShard>& shards, const Score& score,
        Loads& loads, Residency& residency, bool offer_nothing);

  /// The best move to `to` from the sources; item -1 where there is none.
  /// @param at_least  smallest number of pairs to offer, even if they exceed the receiver's deficit
  Candidate search(Rank to, Sources which, std::int64_t at_least) const;

  void apply(const Candidate& move, Rank to);

  std::vector<Assignment> assignments() const;

 private:
  struct Item {
    int shard = 0;
    int next_of_document = -1;
    Range pairs;
    Rank server = 0;
    Weight cost = 0;
    double bound = 0;  ///< largest gain of any part at a server without rows of the document
  };
  /// A rank that can give.
  struct Source {
    double bound;  ///< gain of its best offer to a server that takes all that it can spare
    Rank rank;
  };

  const DocumentShard& shard(const Item& item) const { return shards_[at(item.shard)]; }
  Item& item(int id) { return items_[at(id)]; }
  const Item& item(int id) const { return items_[at(id)]; }
  bool gives(Rank rank, Sources which) const;
  Weight room(Rank to, Sources which) const;
  void add(int shard, Range pairs, Rank server);
  void enlist(int id);
  void delist(int id);
  void refresh(Rank rank);
  void share(Rank rank, int document);
  void consider(int id, Weight limit, std::int64_t at_least, Candidate& best) const;
  void consider_shared(Rank to, Sources which, std::int64_t at_least, Candidate& best) const;
  void take_if_better(const Candidate& candidate, Candidate& best) const;
  Candidate offer(int id, Weight limit, std::int64_t at_least) const;

  const std::vector<DocumentShard>& shards_;
  const Score& score_;
  Loads& loads_;
  Residency& residency_;
  bool offer_nothing_;
  std::vector<Item> items_;
  std::vector<int> last_of_document_;  // heads of lists: Item::next_of_document
  /// The items of a rank.
  struct Held {
    std::vector<int> fresh;                   ///< whose bounds are unknown: it could not give yet
    std::set<std::pair<double, int>> listed;  ///< best bound first: (-bound, item)
  };
  std::vector<Held> by_rank_;
  std::vector<std::vector<int>> shared_;  // by rank: documents that it shares with others
  std::vector<Source> sources_;           // best bound first
  std::vector<Candidate> best_;           // by rank: the offer whose gain sources_ lists
};

}  // namespace cadenza::plan
