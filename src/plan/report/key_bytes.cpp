// SPDX-License-Identifier: Apache-2.0
#include "plan/report/key_bytes.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace cadenza::plan {
namespace {

/// A server's tasks of a document that read the same heads.
using Key = std::tuple<Rank, int, std::int64_t, std::int64_t>;
using Tasks = std::vector<const PlacedTask*>;
/// By rank and document.
using HomesByRank = std::map<std::pair<Rank, int>, std::vector<Range>>;

HomesByRank homes_of(const Workload& workload) {
  HomesByRank homes;
  for (const Home& home : workload.homes) {
    homes[{home.rank, home.document}].push_back(home.tokens);
  }
  return homes;
}

Range read_keys(const Task& task) {
  return seen_keys(task.q, task.k, task.band);
}

/// Logarithm of the probability that a task reads a row of `keys` for none of its queries and
/// heads.
double log_unread(const Workload& workload, const PlacedTask& placed, Range keys) {
  const Task& task = placed.task;
  const std::int64_t pairs = allowed_pairs(task.q, keys, task.band);
  if (pairs == 0) return 0;
  // A row of blocks reads all of a block of keys or nothing.
  const TokenOrder& order = workload.order;
  const std::int64_t rows =
      order.natural() ? workload.sparse.block : std::min(workload.sparse.block, order.run);
  const double queries = static_cast<double>(pairs) / static_cast<double>(keys.size());
  const double blocks = queries / static_cast<double>(std::max<std::int64_t>(rows, 1));
  const auto heads = static_cast<double>(task.heads.size()) /
                     static_cast<double>(key_heads(workload.shape, task.heads).size());
  return blocks * heads * std::log1p(-placed.kept);
}

/// Where rows begin or end that are read by the same tasks, about as often.
std::vector<std::int64_t> cuts(std::int64_t length, const Tasks& tasks,
                               const std::vector<Range>& homes) {
  std::vector<std::int64_t> cuts;
  const auto add = [&](Range range) { cuts.insert(cuts.end(), {range.begin, range.end}); };
  for (const PlacedTask* placed : tasks) add(read_keys(placed->task));
  for (const Range& home : homes) add(home);
  for (std::int64_t bin = 0; bin < SparseDensity::kBins; ++bin) {
    add(SparseDensity::rows(bin, length));
  }
  std::ranges::sort(cuts);
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

/// Rows of K, and as many of V, of one document.
/// @param homes  of the server
double rows_needed(const Workload& workload, const Tasks& tasks, const std::vector<Range>& homes) {
  const auto document = static_cast<std::size_t>(tasks.front()->task.document);
  const std::vector<std::int64_t> edges = cuts(workload.lengths[document], tasks, homes);
  double rows = 0;
  for (std::size_t i = 0; i + 1 < edges.size(); ++i) {
    const Range keys{edges[i], edges[i + 1]};
    const auto holds = [&](const Range& home) { return home.contains(keys); };
    if (std::ranges::any_of(homes, holds)) continue;
    double unread = 0;
    for (const PlacedTask* placed : tasks) {
      if (read_keys(placed->task).contains(keys)) unread += log_unread(workload, *placed, keys);
    }
    rows += static_cast<double>(keys.size()) * -std::expm1(unread);
  }
  return rows;
}

}  // namespace

KeyBytes& KeyBytes::operator+=(const KeyBytes& other) {
  moved += other.moved;
  needed += other.needed;
  return *this;
}

KeyBytes key_bytes(const Plan& plan) {
  KeyBytes bytes;
  HomesByRank homes = homes_of(plan.workload);
  std::map<Key, Tasks> tasks;
  for (const Stage& stage : plan.stages) {
    for (const Move& move : stage.moves) {
      if (move.what == Tensor::k || move.what == Tensor::v) bytes.moved += move.bytes;
    }
    for (const PlacedTask& placed : stage.tasks) {
      const Task& task = placed.task;
      tasks[{placed.server, task.document, task.heads.begin, task.heads.end}].push_back(&placed);
    }
  }
  for (const auto& [key, list] : tasks) {
    const auto& [server, document, first_head, end_head] = key;
    const Range heads = key_heads(plan.workload.shape, {first_head, end_head});
    const std::int64_t row = 2 * move_bytes(plan.workload.shape, Tensor::k, {0, 1}, heads);
    bytes.needed +=
        rows_needed(plan.workload, list, homes[{server, document}]) * static_cast<double>(row);
  }
  return bytes;
}

}  // namespace cadenza::plan
