// SPDX-License-Identifier: Apache-2.0
// Loads while CAD balances. The unit is one allowed query-key pair, an integer, so that every rank
// comes to the same plan.
#pragma once

#include <cstdint>
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
    for (Rank server : servers_) serves_[index(server)] = 1;
    std::int64_t total = 0;
    for (std::int64_t length : workload.lengths) total += causal_pairs({0, length});
    const auto count = static_cast<std::int64_t>(servers_.size());
    const double mean = static_cast<double>(total) / static_cast<double>(count);
    // Surplus and deficit are measured from the mean rounded up: what leaves one server and reaches
    // another brings both nearer to it, so balancing ends.
    target_ = (total + count - 1) / count;
    high_ = mean * (1.0 + tolerance);
    low_ = mean * (1.0 - tolerance);
  }

  void add(Rank rank, std::int64_t pairs) { load_[index(rank)] += pairs; }

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

  /// The server with the smallest load; the lowest rank of several.
  Rank least() const {
    Rank least = servers_.front();
    for (Rank server : servers_) {
      if (load(server) < load(least)) least = server;
    }
    return least;
  }

 private:
  static std::size_t index(Rank rank) { return static_cast<std::size_t>(rank); }

  std::vector<Rank> servers_;
  std::vector<std::int64_t> load_;
  std::vector<char> serves_;
  std::int64_t target_ = 0;
  double high_ = 0;
  double low_ = 0;
};

}  // namespace cadenza::plan
