// SPDX-License-Identifier: Apache-2.0
#include "cost/links.hpp"

#include <algorithm>
#include <bit>

namespace cadenza::cost {

Links::Links(const config::Machine& machine, const config::Cluster& cluster)
    : links_(machine.links),
      ranks_per_node_(static_cast<int>(cluster.ranks_per_node > 0 ? cluster.ranks_per_node
                                                                  : machine.ranks_per_node)) {
  links_.between.bytes_per_second *= cluster.bandwidth;
  links_.between.gather_bytes_per_second *= cluster.bandwidth;
  links_.between.reduce_bytes_per_second *= cluster.bandwidth;
  for (const auto& [one, other, share] : cluster.slow_links) {
    slow_[std::minmax(static_cast<Rank>(one), static_cast<Rank>(other))] = share;
  }
}

int Links::node_of(Rank rank) const {
  return ranks_per_node_ == 0 ? 0 : rank / ranks_per_node_;
}

int Links::adapter_of(Rank rank) const {
  if (links_.adapters == 0) return rank;
  const auto adapters = static_cast<int>(links_.adapters);
  if (ranks_per_node_ == 0) return rank % adapters;
  return node_of(rank) * adapters + rank % ranks_per_node_ * adapters / ranks_per_node_;
}

Way Links::way(Rank from, Rank to) const {
  const bool between = node_of(from) != node_of(to);
  const config::Link& link = between ? links_.between : links_.inside;
  Way way{link.latency_seconds, link.bytes_per_second, between};
  const auto slow = slow_.find(std::minmax(from, to));
  if (slow != slow_.end()) way.bytes_per_second *= slow->second;
  return way;
}

double Links::slowest_share(std::span<const Rank> group) const {
  double share = 1;
  for (std::size_t i = 0; !slow_.empty() && i < group.size(); ++i) {
    const auto slow = slow_.find(std::minmax(group[i], group[(i + 1) % group.size()]));
    if (slow != slow_.end()) share = std::min(share, slow->second);
  }
  return share;
}

/// What each rank of a ring has to the next one, at the slowest place.
Way Links::ring(Ring what, std::span<const Rank> group) const {
  const auto rate = [&](const config::Link& link) {
    const double own =
        what == Ring::gather ? link.gather_bytes_per_second : link.reduce_bytes_per_second;
    return own > 0 ? own : link.bytes_per_second;
  };
  const bool between = node_of(group.front()) != node_of(group.back());
  Way way{links_.inside.latency_seconds, rate(links_.inside), between};
  if (between) {
    std::map<int, int> on_node;
    for (const Rank rank : group) ++on_node[node_of(rank)];
    const int fewest =
        std::ranges::min_element(on_node, {}, [](const auto& node) { return node.second; })->second;
    const double adapters = links_.adapters == 0
                                ? fewest
                                : static_cast<double>(links_.adapters * fewest) / ranks_per_node_;
    way.latency_seconds = links_.between.latency_seconds;
    way.bytes_per_second = adapters * rate(links_.between);
    // One rank of a node alone uses no link inside it.
    if (fewest > 1) way.bytes_per_second = std::min(way.bytes_per_second, rate(links_.inside));
  }
  way.bytes_per_second *= slowest_share(group);
  return way;
}

/// Once round the ring: each rank has sent all but one part of `bytes`.
double Links::round(Ring what, double bytes, std::span<const Rank> group) const {
  const Way way = ring(what, group);
  const auto ranks = static_cast<double>(group.size());
  return (ranks - 1) * (way.latency_seconds + bytes / ranks / way.bytes_per_second);
}

double Links::collective(Collective what, double bytes, std::span<const Rank> group) const {
  if (group.size() <= 1) return 0;
  if (what == Collective::all_gather) return round(Ring::gather, bytes, group);
  const double reduced = round(Ring::reduce, bytes, group);
  if (what == Collective::reduce_scatter) return reduced;
  const Way way = ring(Ring::reduce, group);
  const double hops = 2.0 * std::bit_width(group.size() - 1);  // up and down a tree
  return std::min(reduced + round(Ring::gather, bytes, group),
                  hops * (way.latency_seconds + bytes / way.bytes_per_second));
}

}  // namespace cadenza::cost
