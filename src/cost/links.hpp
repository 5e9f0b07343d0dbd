// SPDX-License-Identifier: Apache-2.0
// Ways between ranks, and what ranks do over them together.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "cadenza/cost/rates.hpp"

namespace cadenza::cost {

class Links {
 public:
  Links(const config::Machine& machine, const config::Cluster& cluster);

  Way way(Rank from, Rank to) const;
  int node_of(Rank rank) const;
  int adapter_of(Rank rank) const;
  double collective(Collective what, double bytes, std::span<const Rank> group) const;

 private:
  enum class Ring : std::uint8_t { gather, reduce };
  Way ring(Ring what, std::span<const Rank> group) const;
  double round(Ring what, double bytes, std::span<const Rank> group) const;
  double slowest_share(std::span<const Rank> group) const;

  config::Links links_;
  int ranks_per_node_;  ///< 0: all ranks are on one node
  std::map<std::pair<Rank, Rank>, double> slow_;
};

}  // namespace cadenza::cost
