// SPDX-License-Identifier: Apache-2.0
#include "cad_pairs.hpp"

#include <algorithm>
#include <set>
#include <tuple>

namespace cadenza::plan {
namespace {

struct Item {
  int document = 0;
  Range pairs;  ///< of the document
  Rank server = 0;
  std::int64_t cost = 0;
  double bound = 0;  ///< no part of the item gains more where nothing of its document is present
};

struct Candidate {
  int item = -1;
  Range pairs;
  std::int64_t cost = 0;
  double gain = 0;  ///< query-key pairs balanced per byte moved
};

enum class Donors {
  must,        ///< above the tolerance, or outside the pool with work left
  above_mean,  ///< any that has more than the mean
  outside,     ///< outside the pool
};

class PairBalancer {
 public:
  PairBalancer(const Workload& workload, const Homes& homes, std::int64_t block, Loads& loads,
               Traffic& traffic)
      : lengths_(workload.lengths),
        block_(block),
        loads_(loads),
        traffic_(traffic),
        by_document_(workload.lengths.size()),
        by_rank_(static_cast<std::size_t>(workload.ranks)),
        shared_(static_cast<std::size_t>(workload.ranks)) {
    for (const Home& home : workload.homes) {
      shared_[static_cast<std::size_t>(home.rank)].push_back(home.document);
    }
    for (std::size_t document = 0; document < lengths_.size(); ++document) {
      add_at_home(static_cast<int>(document), homes);
    }
  }

  void run() {
    while (true) {
      const Rank to = loads_.least();
      if (loads_.deficit(to) <= 0) return;
      // Both sides count (DistCA bounds the receivers alone): a receiver within tolerance still
      // takes from one above it.
      Candidate best = search(to, Donors::must, 0);
      if (best.item < 0 && loads_.under(to)) best = search(to, Donors::above_mean, 0);
      if (best.item < 0) best = search(to, Donors::outside, 1);
      if (best.item < 0) return;
      apply(best, to);
    }
  }

  std::vector<Assignment> assignments() const {
    std::vector<Assignment> list;
    for (const Item& item : items_) {
      list.push_back({item.document, geometry(item.document).head(item.pairs), item.server});
      list.push_back({item.document, geometry(item.document).tail(item.pairs), item.server});
    }
    return list;
  }

 private:
  PairGeometry geometry(int document) const {
    return {lengths_[static_cast<std::size_t>(document)], block_};
  }

  // A whole document is one item. Where a document spans ranks, a pair starts where its tail, the
  // costlier half, begins.
  void add_at_home(int document, const Homes& homes) {
    const PairGeometry shape = geometry(document);
    if (shape.length == 0) return;
    if (homes.of(document).size() == 1) {
      return add(document, {0, shape.pairs()}, homes.of(document).front().rank);
    }
    const auto rank_of = [&](std::int64_t pair) {
      const Range tail = shape.tail({pair, pair + 1});
      Rank rank = 0;
      homes.for_each_part(document, {tail.begin, tail.begin + 1},
                          [&](const Home& part) { rank = part.rank; });
      return rank;
    };
    std::int64_t begin = 0;
    for (std::int64_t pair = 1; pair <= shape.pairs(); ++pair) {
      if (pair < shape.pairs() && rank_of(pair) == rank_of(begin)) continue;
      add(document, {begin, pair}, rank_of(begin));
      begin = pair;
    }
  }

  void add(int document, Range pairs, Rank server) {
    const int id = static_cast<int>(items_.size());
    items_.push_back({document, pairs, server, 0, 0});
    by_document_[static_cast<std::size_t>(document)].push_back(id);
    enlist(id);
    loads_.add(server, items_.back().cost);
  }

  // Cost and bound belong to the pairs an item has when it is listed.
  void enlist(int id) {
    Item& item = items_[static_cast<std::size_t>(id)];
    item.cost = geometry(item.document).cost(item.pairs);
    item.bound = gain_elsewhere(item.document, item.pairs);
    // Inner parts gain less the smaller they are, but pair 0 may hold back the rest by a short last
    // block.
    if (item.pairs.begin == 0 && item.pairs.end > 1) {
      item.bound = std::max(item.bound, gain_elsewhere(item.document, {1, item.pairs.end}));
    }
    by_rank_[static_cast<std::size_t>(item.server)].insert({-item.bound, id});
  }
  void delist(int id) {
    const Item& item = items_[static_cast<std::size_t>(id)];
    by_rank_[static_cast<std::size_t>(item.server)].erase({-item.bound, id});
  }

  static double gain(std::int64_t cost, std::int64_t bytes) {
    return static_cast<double>(cost) / static_cast<double>(std::max<std::int64_t>(1, bytes));
  }
  double gain_elsewhere(int document, Range pairs) const {
    const PairGeometry shape = geometry(document);
    const Range head = shape.head(pairs);
    const Range tail = shape.tail(pairs);
    const std::int64_t rows = head.size() + tail.size();
    return gain(shape.cost(pairs), rows * traffic_.query_bytes() + tail.end * traffic_.key_bytes());
  }

  std::vector<char> donors(Rank to, Donors which) const {
    std::vector<char> gives(by_rank_.size(), 0);
    for (Rank rank = 0; rank < loads_.ranks(); ++rank) {
      const bool outside = !loads_.serves(rank) && loads_.load(rank) > 0;
      const bool chosen = which == Donors::must         ? loads_.over(rank)
                          : which == Donors::above_mean ? loads_.surplus(rank) > 0
                                                        : outside;
      gives[static_cast<std::size_t>(rank)] = chosen && rank != to;
    }
    return gives;
  }

  /// The best move to `to`, of at least `at_least` pairs even where they exceed what the receiver
  /// lacks.
  Candidate search(Rank to, Donors which, std::int64_t at_least) const {
    const std::vector<char> gives = donors(to, which);
    Candidate best;
    // Documents that are partly there already may beat their bound: look at each of them.
    for (int document : shared_[static_cast<std::size_t>(to)]) {
      for (int id : by_document_[static_cast<std::size_t>(document)]) {
        const Rank server = items_[static_cast<std::size_t>(id)].server;
        if (gives[static_cast<std::size_t>(server)]) consider(id, to, at_least, best);
      }
    }
    for (std::size_t rank = 0; rank < gives.size(); ++rank) {
      if (!gives[rank]) continue;
      for (const auto& [bound, id] : by_rank_[rank]) {
        if (best.item >= 0 && -bound < best.gain) break;
        consider(id, to, at_least, best);
      }
    }
    return best;
  }

  void consider(int id, Rank to, std::int64_t at_least, Candidate& best) const {
    const Item& item = items_[static_cast<std::size_t>(id)];
    const std::int64_t limit = std::min(loads_.surplus(item.server), loads_.deficit(to));
    const std::int64_t count = std::max(at_least, fitting(item, limit));
    if (count == 0) return;
    const PairGeometry shape = geometry(item.document);
    // The source keeps the outer pairs, the inner ones go: fewer keys travel.
    const Range pairs{item.pairs.end - count, item.pairs.end};
    const std::int64_t cost = shape.cost(pairs);
    const double value =
        gain(cost, traffic_.bytes(to, item.document, {shape.head(pairs), shape.tail(pairs)}));
    if (best.item >= 0 && value < best.gain) return;
    if (best.item >= 0 && value == best.gain) {
      const Item& other = items_[static_cast<std::size_t>(best.item)];
      if (std::tie(other.document, best.pairs.begin, other.server) <=
          std::tie(item.document, pairs.begin, item.server)) {
        return;
      }
    }
    best = {id, pairs, cost, value};
  }

  /// The most inner pairs of an item whose cost does not exceed `limit`.
  std::int64_t fitting(const Item& item, std::int64_t limit) const {
    if (limit <= 0) return 0;
    if (limit >= item.cost) return item.pairs.size();
    const PairGeometry shape = geometry(item.document);
    std::int64_t count = limit / shape.full_pair();
    // A middle block costs half a pair and may leave room for one more.
    while (count < item.pairs.size() &&
           shape.cost({item.pairs.end - count - 1, item.pairs.end}) <= limit) {
      ++count;
    }
    return count;
  }

  void apply(const Candidate& move, Rank to) {
    const Item before = items_[static_cast<std::size_t>(move.item)];
    const PairGeometry shape = geometry(before.document);
    const bool whole = move.pairs == Range{0, shape.pairs()};
    if (!whole && !traffic_.present(to, before.document)) {
      shared_[static_cast<std::size_t>(to)].push_back(before.document);
    }
    traffic_.bring(to, before.document, shape.tail(move.pairs).end);
    loads_.add(before.server, -move.cost);
    delist(move.item);
    if (move.pairs == before.pairs) {
      items_[static_cast<std::size_t>(move.item)].server = to;
      enlist(move.item);
      loads_.add(to, move.cost);
      return;
    }
    items_[static_cast<std::size_t>(move.item)].pairs.end = move.pairs.begin;
    enlist(move.item);
    add(before.document, move.pairs, to);
  }

  const std::vector<std::int64_t>& lengths_;
  std::int64_t block_;
  Loads& loads_;
  Traffic& traffic_;
  std::vector<Item> items_;
  std::vector<std::vector<int>> by_document_;
  std::vector<std::set<std::pair<double, int>>> by_rank_;  // best bound first
  std::vector<std::vector<int>> shared_;  // by rank: documents at home there or brought in part
};

}  // namespace

std::vector<Assignment> balance_pairs(const Workload& workload, const Homes& homes,
                                      std::int64_t block, Loads& loads, Traffic& traffic) {
  PairBalancer balancer(workload, homes, block, loads, traffic);
  balancer.run();
  return balancer.assignments();
}

}  // namespace cadenza::plan
