// SPDX-License-Identifier: Apache-2.0
// Loads of ranks while CAD balances, in allowed query-key pairs or, with sparse attention, in units
// of Weights: integers, so that every rank makes the same plan. A server's share of all pairs is in
// proportion to its capacity; servers are compared by their time beyond that of their shares.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

class Loads {
 public:
  Loads(const Workload& workload, double tolerance)
      : servers_(workload.servers), ranks_(static_cast<std::size_t>(workload.ranks)) {
    Weight total = 0;
    for (std::size_t document = 0; document < workload.lengths.size(); ++document) {
      total += workload.weights_of(static_cast<int>(document)).pairs(workload.queries_of(document));
    }
    const std::int64_t pool = workload.pool_capacity();
    for (Rank server : servers_) {
      const std::int64_t capacity = workload.capacity(server);
      const double share = static_cast<double>(total) * usual_ranks(capacity) / usual_ranks(pool);
      // Surplus and deficit are measured from the share, rounded up: a move within both brings
      // giver and receiver nearer to it, so balancing ends.
      const Weight target = (total * capacity + pool - 1) / pool;
      of(server) = {0,   capacity, target, share * (1.0 + tolerance), share * (1.0 - tolerance),
                    true};
      by_excess_.push({excess(server), server});
    }
  }

  void add(Rank rank, Weight pairs) {
    of(rank).load += pairs;
    if (serves(rank)) by_excess_.push({excess(rank), rank});
  }

  int ranks() const { return static_cast<int>(ranks_.size()); }
  const std::vector<Rank>& servers() const { return servers_; }
  Weight load(Rank rank) const { return of(rank).load; }
  bool serves(Rank rank) const { return of(rank).serves; }

  /// The rank's time for `pairs` less that for its share, in units of a usual rank's time for a
  /// pair. Rounded down, so that it is negative for any load below the share.
  Weight excess(Rank rank, Weight pairs) const {
    const Weight more = (pairs - of(rank).target) * kFullCapacity;
    const std::int64_t capacity = of(rank).capacity;
    return (more - (more < 0 ? capacity - 1 : 0)) / capacity;
  }
  Weight excess(Rank rank) const { return excess(rank, load(rank)); }

  /// The most pairs that `from` can give to `to` such that both need less time than `from` now.
  Weight useful(Rank from, Rank to) const {
    const std::int64_t capacity = of(from).capacity;
    const Weight level = (load(from) * of(to).capacity + capacity - 1) / capacity;
    return level - load(to) - 1;
  }

  /// Pairs above the rank's share, which it should give away; a rank outside the pool gives all.
  Weight surplus(Rank rank) const { return load(rank) - of(rank).target; }
  Weight deficit(Rank server) const { return of(server).target - load(server); }

  /// Pairs up to the most that the tolerance allows; at least the deficit.
  Weight room(Rank server) const {
    return std::max(deficit(server), static_cast<Weight>(of(server).high) - load(server));
  }

  /// Whether a rank is above the tolerance and must give. Outside the pool: whether it has work.
  bool over(Rank rank) const { return static_cast<double>(load(rank)) > of(rank).high; }
  bool under(Rank server) const { return below(server, load(server)); }

  /// Whether a load of `pairs` lies below the server's tolerance.
  bool below(Rank server, Weight pairs) const {
    return static_cast<double>(pairs) < of(server).low;
  }
  /// The deficit that the tolerance allows a server.
  double slack(Rank server) const {
    return static_cast<double>(of(server).target) - of(server).low;
  }

  /// The server with the least excess, which finishes first; ties go to the lowest rank.
  Rank least() {
    while (by_excess_.top().first != excess(by_excess_.top().second)) by_excess_.pop();
    return by_excess_.top().second;
  }

 private:
  /// A rank's load and bounds. A rank that does not serve has a target of 0.
  struct Of {
    Weight load = 0;
    std::int64_t capacity = kFullCapacity;
    Weight target = 0;
    double high = 0;
    double low = 0;
    bool serves = false;
  };
  const Of& of(Rank rank) const { return ranks_[at(rank)]; }
  Of& of(Rank rank) { return ranks_[at(rank)]; }

  using Entry = std::pair<Weight, Rank>;

  std::vector<Rank> servers_;
  std::vector<Of> ranks_;
  // Servers by excess; least() skips entries whose load has changed since.
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> by_excess_;
};

}  // namespace cadenza::plan
