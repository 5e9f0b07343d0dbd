// SPDX-License-Identifier: Apache-2.0
// Loads of ranks while CAD balances, in allowed query-key pairs or, with sparse attention, in units
// of Weights: integers, so that every rank makes the same plan. Shares are such that all servers
// end a layer together, by their capacities and with the layer's other work on their own tokens;
// servers are compared by their time beyond that of their shares.
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
  /// @param other  by rank: its work besides attention, in pairs that take as long; empty: equal
  Loads(const Workload& workload, double tolerance, const std::vector<Weight>& other = {})
      : servers_(workload.servers), ranks_(static_cast<std::size_t>(workload.ranks)) {
    Weight attention = 0;
    for (std::size_t document = 0; document < workload.lengths.size(); ++document) {
      attention +=
          workload.weights_of(static_cast<int>(document)).pairs(workload.queries_of(document));
    }
    for (Rank server : servers_) {
      of(server).capacity = workload.capacity(server);
      of(server).serves = true;
      if (!other.empty()) of(server).other = other[at(server)];
    }
    const Level level = level_of(attention);
    const std::int64_t pool = workload.pool_capacity();
    for (Rank server : servers_) {
      Of& rank = of(server);
      // Surplus and deficit are measured from the share, rounded up: a move within both brings
      // giver and receiver nearer to it, so balancing ends.
      const Weight together = (level.work * rank.capacity + level.capacity - 1) / level.capacity;
      rank.target = std::max<Weight>(0, together - rank.other);
      const auto of_all = [&](Weight work, std::int64_t capacity) {
        return static_cast<double>(work) * usual_ranks(rank.capacity) / usual_ranks(capacity);
      };
      const double share = of_all(attention, pool);
      // 0, exactly, where nobody has other work.
      const double shift =
          of_all(level.work, level.capacity) - static_cast<double>(rank.other) - share;
      rank.high = std::max(0.0, shift + share * (1.0 + tolerance));
      rank.low = shift + share * (1.0 - tolerance);
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
    const Weight work = load(from) + of(from).other;
    const Weight level = (work * of(to).capacity + capacity - 1) / capacity;
    return level - of(to).other - load(to) - 1;
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
    Weight load = 0;   ///< pairs
    Weight other = 0;  ///< work besides attention, in pairs that take as long
    std::int64_t capacity = kFullCapacity;
    Weight target = 0;
    double high = 0;
    double low = 0;
    bool serves = false;
  };

  /// Work, and the capacity of those that share it: a server without more of its own takes as much
  /// of `work` as its part of `capacity`.
  struct Level {
    Weight work = 0;
    std::int64_t capacity = 0;
  };

  /// Such that all servers end at the same time, but for those whose own work takes longer.
  Level level_of(Weight attention) const {
    std::vector<Rank> by_own = servers_;
    const auto own = [&](Rank rank) {
      return static_cast<double>(of(rank).other) / static_cast<double>(of(rank).capacity);
    };
    std::ranges::stable_sort(by_own, {}, own);
    Level level{attention, 0};
    for (Rank rank : by_own) {
      const bool later = level.capacity > 0 && own(rank) >= static_cast<double>(level.work) /
                                                                static_cast<double>(level.capacity);
      if (later) break;
      level.work += of(rank).other;
      level.capacity += of(rank).capacity;
    }
    return level;
  }
  const Of& of(Rank rank) const { return ranks_[at(rank)]; }
  Of& of(Rank rank) { return ranks_[at(rank)]; }

  using Entry = std::pair<Weight, Rank>;

  std::vector<Rank> servers_;
  std::vector<Of> ranks_;
  // Servers by excess; least() skips entries whose load has changed since.
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> by_excess_;
};

}  // namespace cadenza::plan
