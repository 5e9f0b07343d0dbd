// SPDX-License-Identifier: Apache-2.0
// Makes the workload of a tick: which ranks hold which tokens, as the placement requires.
#include <algorithm>
#include <utility>

#include "cadenza/base/at.hpp"
#include "cadenza/cost/flops.hpp"
#include "cadenza/plan/placement.hpp"
#include "plan/workload/sharding.hpp"

namespace cadenza::plan {
namespace {

TokenOrder token_order(const config::Experiment& experiment) {
  if (!config::deals_stripes(experiment.attention.placement)) return {};
  const bool blocks = experiment.attention.shares() == config::Shares::block_striped;
  return {experiment.parallel.context, blocks ? experiment.attention.block : 1};
}

/// Sums of the capacities of every `parts` neighbouring ranks.
std::vector<std::int64_t> joined(std::span<const std::int64_t> capacities, int parts) {
  std::vector<std::int64_t> sums(capacities.size() / static_cast<std::size_t>(parts), 0);
  for (std::size_t rank = 0; rank < capacities.size(); ++rank) {
    sums[rank / static_cast<std::size_t>(parts)] += capacities[rank];
  }
  return sums;
}

/// Homes of one group's documents, ranks counted from 0.
/// @param capacities  of the group's ranks; empty: all are equal. Stripes ignore them
std::vector<Home> share(const config::Experiment& experiment, const TokenOrder& order,
                        std::span<const std::int64_t> capacities,
                        std::span<const std::int64_t> lengths, int first) {
  const config::Attention& attention = experiment.attention;
  if (!order.natural()) return shard_stripes(lengths, first, order);
  const int ranks = static_cast<int>(experiment.parallel.context);
  const bool grouped = config::traits_of(attention.placement).keys == config::KeyPath::head_groups;
  const int parts = grouped ? static_cast<int>(attention.head_parallel) : 1;
  const int positions = ranks / parts;
  const config::Shares shares = attention.shares();
  if (shares == config::Shares::ptrr) {
    return split_ranks(shard_by_work(lengths, first, positions, attention.block, attention.mask()),
                       positions, parts);
  }
  if (attention.shares_by_cost()) {
    const DegreeRule rule{positions, joined(capacities, parts), shares == config::Shares::whole,
                          experiment.batch.longest, cost::DocumentCost(experiment)};
    return split_ranks(shard_by_degree(lengths, first, rule), positions, parts);
  }
  const int chunks = shares == config::Shares::zigzag ? 2 : 1;
  const auto cut = [&](bool documents) {
    const Cut whole{positions, chunks, documents, joined(capacities, parts)};
    return split_ranks(shard(lengths, first, whole), positions, parts);
  };
  if (attention.shard_unit != config::ShardUnit::predicted) {
    return cut(attention.shard_unit == config::ShardUnit::document);
  }
  const std::vector<Home> documents = cut(true);
  const std::vector<Home> sequence = cut(false);
  const auto tiles = [&](const std::vector<Home>& homes) {
    return predicted_tiles(experiment.attention.mask(), homes, ranks, capacities);
  };
  return tiles(sequence) < tiles(documents) ? sequence : documents;
}

/// Homes for ping-pong: the ranks share each half, so that all have rows of both.
std::vector<Home> share_halves(const config::Experiment& experiment,
                               std::span<const std::int64_t> capacities,
                               std::span<const std::int64_t> lengths, int first) {
  const std::vector<std::int64_t> cuts = half_cuts(lengths);
  std::vector<std::int64_t> rest(lengths.begin(), lengths.end());
  for (std::size_t i = 0; i < cuts.size(); ++i) rest[i] -= cuts[i];
  std::vector<Home> homes = share(experiment, {}, capacities, cuts, first);
  for (Home home : share(experiment, {}, capacities, rest, first)) {
    const std::int64_t cut = cuts[at(home.document - first)];
    home.tokens = {home.tokens.begin + cut, home.tokens.end + cut};
    homes.push_back(home);
  }
  join_homes(homes);
  return homes;
}

/// Capacities of a group's ranks for sharding. Pipeline stages pass a microbatch on row by row, so
/// all groups of a replica share it in the same way, by the slowest of their ranks.
std::vector<std::int64_t> group_capacities(const Workload& workload,
                                           const config::Parallel& parallel, std::size_t groups,
                                           std::size_t group) {
  if (workload.capacities.empty()) return {};
  const auto data = static_cast<std::size_t>(parallel.data);
  const auto context = static_cast<std::size_t>(parallel.context);
  std::vector<std::int64_t> slowest;
  for (std::size_t rank = 0; rank < context; ++rank) {
    slowest.push_back(workload.capacities[group * context + rank]);
    for (std::size_t other = group % data; other < groups; other += data) {
      slowest.back() = std::min(slowest.back(), workload.capacities[other * context + rank]);
    }
  }
  return slowest;
}

}  // namespace

void weigh(Workload& workload, const SparseEstimate& estimate) {
  workload.density.clear();
  if (workload.sparse.block == 0) return;
  for (const std::int64_t length : workload.lengths) {
    workload.density.push_back(estimate.density(workload.sparse, length, workload.layers));
  }
}

Workload make_workload(const config::Experiment& experiment, std::span<const Occupant> groups,
                       int dedicated, std::vector<std::int64_t> capacities) {
  Workload workload;
  workload.capacities = std::move(capacities);
  const int context = static_cast<int>(experiment.parallel.context);
  const int trainers = static_cast<int>(groups.size()) * context;
  workload.ranks = trainers + dedicated;
  workload.context = context;
  // Tensor-parallel ranks follow one plan, each for its own heads.
  workload.shape =
      config::attention_shape(experiment.model, experiment.parallel.tensor, experiment.run.dtype);
  workload.order = token_order(experiment);
  workload.mask = experiment.attention.mask();
  workload.sparse = experiment.attention.sparse_rule();
  const bool halves = experiment.attention.overlap == config::Overlap::ping_pong;
  const bool in_place = dedicated == 0 || experiment.attention.mixed;
  for (Rank rank = in_place ? 0 : trainers; rank < workload.ranks; ++rank) {
    workload.servers.push_back(rank);
  }
  for (std::size_t group = 0; group < groups.size(); ++group) {
    if (groups[group] == nullptr) continue;
    const std::size_t first = workload.lengths.size();
    for (const data::BatchDocument& document : groups[group]->documents) {
      workload.lengths.push_back(document.length());
    }
    const std::span<const std::int64_t> lengths = std::span(workload.lengths).subspan(first);
    const int number = static_cast<int>(first);
    const auto speeds = group_capacities(workload, experiment.parallel, groups.size(), group);
    for (Home home : halves ? share_halves(experiment, speeds, lengths, number)
                            : share(experiment, workload.order, speeds, lengths, number)) {
      home.rank += static_cast<Rank>(group) * context;
      workload.homes.push_back(home);
    }
  }
  weigh(workload, {});
  return workload;
}

}  // namespace cadenza::plan
