// SPDX-License-Identifier: Apache-2.0
// The rates of a machine: attention, products, memory, links between ranks, and collectives.
#include "cadenza/cost/rates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "cadenza/cost/product_time.hpp"
#include "cost/attention_time.hpp"

namespace cadenza::cost {

class Links {
 public:
  Links(const config::Machine& machine, const config::Cluster& cluster);

  Way way(Rank from, Rank to) const;
  int node_of(Rank rank) const;
  int adapter_of(Rank rank) const;
  double collective(Collective what, double bytes, std::span<const Rank> group) const;
  double exchange(Collective what, double bytes, std::span<const Rank> group) const;

 private:
  enum class Ring : std::uint8_t { gather, reduce };
  std::vector<int> members_by_node(std::span<const Rank> group) const;
  static double rate_of(const config::Link& link, Ring what);
  Way ring(Ring what, std::span<const Rank> group) const;
  double round(Ring what, double bytes, std::span<const Rank> group) const;
  double share(Rank from, Rank to) const;
  double slowest_share(std::span<const Rank> group, bool between) const;

  config::Links links_;
  int ranks_per_node_;  ///< 0: all ranks are on one node
  std::map<std::pair<Rank, Rank>, double> slow_;
  std::map<int, std::array<double, 2>> slow_adapters_;  ///< by node: shares out and in
};

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
  for (const auto& [node, out, in] : cluster.slow_adapters) {
    slow_adapters_[static_cast<int>(node)] = {out, in};
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
  return {link.latency_seconds, link.bytes_per_second * share(from, to), between};
}

/// The share of its bandwidth that a link has: the slowest part of the way limits it.
double Links::share(Rank from, Rank to) const {
  double share = 1;
  if (const auto slow = slow_.find(std::minmax(from, to)); slow != slow_.end()) {
    share = slow->second;
  }
  if (node_of(from) == node_of(to)) return share;
  const auto limit = [&](Rank rank, std::size_t direction) {
    const auto slow = slow_adapters_.find(node_of(rank));
    if (slow != slow_adapters_.end()) share = std::min(share, slow->second.at(direction));
  };
  limit(from, 0);
  limit(to, 1);
  return share;
}

/// Of the links of a ring inside nodes, or of those between them.
double Links::slowest_share(std::span<const Rank> group, bool between) const {
  double slowest = 1;
  if (slow_.empty() && slow_adapters_.empty()) return slowest;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const Rank from = group[i], to = group[(i + 1) % group.size()];
    if ((node_of(from) != node_of(to)) == between) slowest = std::min(slowest, share(from, to));
  }
  return slowest;
}

/// How many ranks each of the group's nodes has.
std::vector<int> Links::members_by_node(std::span<const Rank> group) const {
  const auto [first, last] = std::ranges::minmax(group);
  const int least = node_of(first);
  std::vector<int> members(static_cast<std::size_t>(node_of(last) - least + 1));
  for (const Rank rank : group) ++members[static_cast<std::size_t>(node_of(rank) - least)];
  std::erase(members, 0);
  return members;
}

double Links::rate_of(const config::Link& link, Ring what) {
  const double own =
      what == Ring::gather ? link.gather_bytes_per_second : link.reduce_bytes_per_second;
  return own > 0 ? own : link.bytes_per_second;
}

/// The slowest connection of a ring from one rank to the next.
Way Links::ring(Ring what, std::span<const Rank> group) const {
  const auto rate = [&](const config::Link& link) { return rate_of(link, what); };
  const bool between = node_of(group.front()) != node_of(group.back());
  const double inside = rate(links_.inside) * slowest_share(group, false);
  Way way{links_.inside.latency_seconds, inside, between};
  if (between) {
    const std::vector<int> on_node = members_by_node(group);
    const int fewest = std::ranges::min(on_node);
    const double adapters = links_.adapters == 0
                                ? fewest
                                : static_cast<double>(links_.adapters * fewest) / ranks_per_node_;
    way.latency_seconds = links_.between.latency_seconds;
    const config::Fabric& fabric = links_.fabric;
    const bool far = fabric.nodes > 0 && std::ssize(on_node) > fabric.nodes;
    way.bytes_per_second =
        adapters * rate(links_.between) * slowest_share(group, true) * (far ? fabric.share : 1.0);
    // A node with one rank of the group uses no link inside it.
    if (fewest > 1) way.bytes_per_second = std::min(way.bytes_per_second, inside);
  }
  return way;
}

/// Seconds of going once round the ring: each rank sends all parts of `bytes` but one.
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

double Links::exchange(Collective what, double bytes, std::span<const Rank> group) const {
  const Ring kind = what == Collective::all_gather ? Ring::gather : Ring::reduce;
  if (group.size() <= 1 || node_of(group.front()) == node_of(group.back())) {
    return collective(what, bytes, group);
  }
  const std::vector<int> on_node = members_by_node(group);
  const int near = std::ranges::min(on_node) - 1;
  const double adapters =
      links_.adapters == 0 ? 1 : static_cast<double>(links_.adapters) / ranks_per_node_;
  const double part = bytes / static_cast<double>(group.size());
  const auto seconds = [&](const config::Link& link, double rate, bool between) {
    return link.latency_seconds + part / (rate * slowest_share(group, between));
  };
  return near * seconds(links_.inside, rate_of(links_.inside, kind), false) +
         static_cast<double>(std::ssize(group) - 1 - near) *
             seconds(links_.between, adapters * rate_of(links_.between, kind), true);
}

namespace {

double copy_seconds(const config::ElementWise& rates, double config::CopyRates::*direction,
                    std::int64_t bytes, Copied what) {
  double rate = 0;
  if (what == Copied::streams) {
    rate = rates.streams.*direction;
    // Memory is read once and written once, in order.
    if (rate == 0) rate = rates.bytes_per_second / 2;
  } else {
    if (what == Copied::slices) rate = rates.slices.*direction;
    if (rate == 0) rate = rates.copies.*direction;
    if (rate == 0) rate = rates.bytes_per_second;
  }
  return static_cast<double>(bytes) / rate;
}

}  // namespace

struct Rates::Parts {
  config::Machine machine;
  AttentionTime attention;
  ProductTime products;
  Links links;
  config::Software software;
};

namespace {

/// The times of attention with the kernels of a stack.
config::AttentionTimes with_kernels(config::AttentionTimes times,
                                    const config::Software& software) {
  config::PassRates rates{software.attention_rate, software.attention_rate};
  if (software.attention == config::AttentionKernels::fastest) {
    rates.forward *= times.fastest.forward;
    rates.backward *= times.fastest.backward;
  }
  const auto quicken = [&](std::vector<config::Row<3>>& rows, double by) {
    for (auto& [queries, keys, seconds] : rows) {
      const double work = std::max(0.0, seconds - times.launch_seconds);
      seconds += work / by - work;
    }
  };
  quicken(times.forward, rates.forward);
  quicken(times.backward, rates.backward);
  times.flops_per_second *= rates.backward;  // most of the work
  return times;
}

}  // namespace

Rates::Rates(const config::Machine& machine, const config::Cluster& cluster, std::int64_t head_dim)
    : parts_(new Parts{machine,
                       AttentionTime(with_kernels(machine.attention, cluster.software), head_dim),
                       ProductTime(machine.products, config::element_bytes(machine.dtype).element),
                       Links(machine, cluster), cluster.software}) {}

Rates::Rates(Rates&&) noexcept = default;
Rates& Rates::operator=(Rates&&) noexcept = default;
Rates::~Rates() = default;

double Rates::launch_seconds() const {
  return parts_->machine.attention.launch_seconds;
}

double Rates::task_seconds(const Task& task, Pass pass) const {
  return parts_->attention.seconds(task, pass);
}

double Rates::sparse_pair(std::int64_t block, double adjoining, Pass pass) const {
  return parts_->attention.sparse_pair(block, adjoining, pass);
}

double Rates::index_seconds(const IndexWork& work) const {
  const config::IndexRates& rates = parts_->machine.attention.index;
  return work.flops / rates.flops_per_second + work.scores / rates.scores_per_second +
         work.masses / rates.masses_per_second;
}

double Rates::product_seconds(const Product& product) const {
  return parts_->products.seconds(product);
}

double Rates::pack(std::int64_t bytes, Copied what) const {
  if (what == Copied::streams && !parts_->software.copies_streams) return 0;
  return copy_seconds(parts_->machine.element_wise, &config::CopyRates::pack, bytes, what);
}

double Rates::unpack(std::int64_t bytes, Copied what) const {
  if (what == Copied::streams && !parts_->software.copies_streams) return 0;
  return copy_seconds(parts_->machine.element_wise, &config::CopyRates::unpack, bytes, what);
}

Way Rates::way(Rank from, Rank to) const {
  return parts_->links.way(from, to);
}

double Rates::host_copy(std::int64_t bytes) const {
  return static_cast<double>(bytes) / machine().links.host_bytes_per_second;
}

int Rates::node_of(Rank rank) const {
  return parts_->links.node_of(rank);
}

int Rates::adapter_of(Rank rank) const {
  return parts_->links.adapter_of(rank);
}

double Rates::collective(Collective what, double bytes, std::span<const Rank> group) const {
  return parts_->links.collective(what, bytes, group);
}

double Rates::exchange(Collective what, double bytes, std::span<const Rank> group) const {
  return parts_->links.exchange(what, bytes, group);
}

std::vector<std::string> Rates::extrapolations() const {
  std::vector<std::string> lines = parts_->attention.extrapolations();
  for (std::string& line : parts_->products.extrapolations()) lines.push_back(std::move(line));
  return lines;
}

const config::Machine& Rates::machine() const {
  return parts_->machine;
}

const config::Software& Rates::software() const {
  return parts_->software;
}

Pool nominal_pool(std::int64_t head_dim) {
  return {Rates({}, {}, head_dim), {}};
}

std::string nominal_rates() {
  const config::Machine machine;
  return fmt::format("assumed {:.0f} GFLOP/s, {:.0f} GB/s: set cluster.machine",
                     machine.products.flops_per_second / 1e9,
                     machine.links.between.bytes_per_second / 1e9);
}

}  // namespace cadenza::cost
