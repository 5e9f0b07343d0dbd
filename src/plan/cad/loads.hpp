// SPDX-License-Identifier: Apache-2.0
// Loads while CAD balances. The unit is one allowed query-key pair, an integer, so that every rank
// comes to the same plan.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

/// Pairs of the causal queries [begin, end) with every key they see.
constexpr std::int64_t causal_pairs(Range q) {
  return q.end * (q.end + 1) / 2 - q.begin * (q.begin + 1) / 2;
}

class Loads {
 public:
  Loads(const Workload& workload, double tolerance)
      : servers_(workload.servers),
        load_(static_cast<std::size_t>(workload.ranks), 0),
        serves_(static_cast<std::size_t>(workload.ranks), 0) {
    for (Rank server : servers_) {
      serves_[index(server)] = 1;
      by_load_.push({0, server});
    }
    std::int64_t total = 0;
    for (std::size_t document = 0; document < workload.lengths.size(); ++document) {
      total += causal_pairs(workload.queries_of(document));
    }
    const auto count = static_cast<std::int64_t>(servers_.size());
    const double mean = static_cast<double>(total) / static_cast<double>(count);
    // Surplus and deficit are measured from the mean rounded up: what leaves one server and reaches
    // another brings both nearer to it, so balancing ends.
    target_ = (total + count - 1) / count;
    high_ = mean * (1.0 + tolerance);
    low_ = mean * (1.0 - tolerance);
  }

  void add(Rank rank, std::int64_t pairs) {
    load_[index(rank)] += pairs;
    if (serves(rank)) by_load_.push({load(rank), rank});
  }

  int ranks() const { return static_cast<int>(load_.size()); }
  const std::vector<Rank>& servers() const { return servers_; }
  std::int64_t load(Rank rank) const { return load_[index(rank)]; }
  bool serves(Rank rank) const { return serves_[index(rank)] != 0; }

  /// What a rank should give away; a rank outside the pool gives all.
  std::int64_t surplus(Rank rank) const { return serves(rank) ? load(rank) - target_ : load(rank); }
  std::int64_t deficit(Rank server) const { return target_ - load(server); }

  /// Above the tolerance: must give. A rank outside the pool must give as long as it has work.
  bool over(Rank rank) const {
    return serves(rank) ? static_cast<double>(load(rank)) > high_ : load(rank) > 0;
  }
  bool under(Rank server) const { return static_cast<double>(load(server)) < low_; }

  /// Whether a load lies below the tolerance.
  bool below(std::int64_t pairs) const { return static_cast<double>(pairs) < low_; }
  /// What a server may lack: the deficit that the tolerance leaves.
  double slack() const { return static_cast<double>(target_) - low_; }

  /// The server with the smallest load; the lowest rank of several.
  Rank least() {
    while (by_load_.top().first != load(by_load_.top().second)) by_load_.pop();
    return by_load_.top().second;
  }

 private:
  static std::size_t index(Rank rank) { return static_cast<std::size_t>(rank); }
  using Entry = std::pair<std::int64_t, Rank>;

  std::vector<Rank> servers_;
  std::vector<std::int64_t> load_;
  std::vector<char> serves_;
  // Servers by load; entries of loads that have changed since are passed over.
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> by_load_;
  std::int64_t target_ = 0;
  double high_ = 0;
  double low_ = 0;
};

}  // namespace cadenza::plan
