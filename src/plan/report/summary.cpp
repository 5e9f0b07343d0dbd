// SPDX-License-Identifier: Apache-2.0
#include "plan/report/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "cadenza/base/text.hpp"

namespace cadenza::plan {
namespace {

/// Whether `second` covers the rest of the queries of the same documents.
bool completes(const Workload& first, const Workload& second) {
  if (first.queries.empty() || second.queries.empty()) return false;
  if (first.lengths != second.lengths) return false;
  for (std::size_t d = 0; d < first.lengths.size(); ++d) {
    const Range a = first.queries[d];
    const Range b = second.queries[d];
    const bool joined = a.empty() || b.empty() ? a.size() + b.size() == first.lengths[d]
                                               : a.end == b.begin || b.end == a.begin;
    if (!joined) return false;
  }
  return true;
}

/// By plan: the share of the model's layers that it covers. Weighted by it, sums over plans are
/// those of a mean layer.
std::vector<double> layer_shares(const std::vector<Plan>& plans) {
  std::set<std::vector<int>> classes;
  for (const Plan& plan : plans) classes.insert(plan.workload.layers);
  std::size_t layers = 0;
  for (const std::vector<int>& each : classes) layers += each.size();
  std::vector<double> shares;
  for (const Plan& plan : plans) {
    const auto mine = static_cast<double>(plan.workload.layers.size());
    shares.push_back(layers == 0 ? 1 : mine / static_cast<double>(layers));
  }
  return shares;
}

}  // namespace

Prediction prediction_of(const std::vector<Plan>& plans, std::size_t i, const StepNotes& notes) {
  if (!notes.predictions.empty()) return notes.predictions.at(i);
  return predict(plans[i], cost::nominal_pool(plans[i].workload.shape.head_dim));
}

std::string rates_of(const StepNotes& notes) {
  return notes.rates.empty() ? cost::nominal_rates() : notes.rates;
}

std::string describe(const std::vector<Trial>& trials) {
  if (trials.empty()) return "";
  constexpr double kUsual = 0.1;
  const Trial& taken = trials.front();
  const Trial* other = &trials[1];
  for (const Trial& trial : std::span(trials).subspan(1)) {
    if (trial.tolerance == kUsual) other = &trial;
  }
  return fmt::format("{} (auto: a layer is predicted to take {}; {}: {})", taken.tolerance,
                     format_duration(taken.layer_seconds), other->tolerance,
                     format_duration(other->layer_seconds));
}

Summary summarize(const std::vector<Plan>& plans, const StepNotes& notes) {
  Summary summary;
  if (plans.empty()) return summary;
  summary.total.workload.ranks = plans.front().workload.ranks;
  summary.total.workload.servers = plans.front().workload.servers;
  summary.total.workload.capacities = plans.front().workload.capacities;
  add_totals(summary.total);  // makes the lists, all zeros
  const std::vector<double> parts = layer_shares(plans);
  std::vector<double> at_home = summary.total.cost_per_rank;
  std::vector<double> bytes = at_home;
  double moved = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const Plan& plan = plans[i];
    const std::vector<double> home = cost_at_home(plan.workload);
    for (std::size_t rank = 0; rank < plan.cost_per_rank.size(); ++rank) {
      summary.total.cost_per_rank[rank] += parts[i] * plan.cost_per_rank[rank];
      bytes[rank] += parts[i] * static_cast<double>(plan.bytes_sent_per_rank[rank]);
      at_home[rank] += parts[i] * home[rank];
    }
    const KeyBytes keys = key_bytes(plan);
    moved += parts[i] * static_cast<double>(keys.moved);
    summary.keys.needed += parts[i] * keys.needed;
    const Prediction prediction = prediction_of(plans, i, notes);
    summary.prediction.lower_bound_seconds += parts[i] * prediction.lower_bound_seconds;
    summary.prediction.predicted_seconds += parts[i] * prediction.predicted_seconds;
  }
  for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
    summary.total.bytes_sent_per_rank[rank] = std::llround(bytes[rank]);
  }
  summary.keys.moved = std::llround(moved);
  summary.imbalance_at_home = imbalance_at_home(plans.front().workload, at_home);
  return summary;
}

std::string describe_layers(const Workload& workload) {
  return workload.layers.empty() ? "" : ", layers " + number_list(workload.layers);
}

std::vector<Place> places(const std::vector<Plan>& plans) {
  std::vector<Place> list;
  int documents = 0;
  int tick = -1;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const bool second =
        i > 0 && list.back().half == 0 && completes(plans[i - 1].workload, plans[i].workload);
    const bool other_layers = plans[i].workload.layers != plans.front().workload.layers;
    if (second || other_layers) {
      list.push_back({tick, second ? 1 : 0, false, list.back().first_document});
      continue;
    }
    list.push_back({++tick, 0, true, documents});
    documents += static_cast<int>(plans[i].workload.lengths.size());
  }
  return list;
}

namespace {

/// A server's tasks of a document that read the same heads.
using Key = std::tuple<Rank, int, std::int64_t, std::int64_t>;
using Tasks = std::vector<const PlacedTask*>;
/// Homes by rank and document.
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

/// Logarithm of the probability that no query and head of a task reads a row of `keys`.
double log_unread(const Workload& workload, const PlacedTask& placed, Range keys) {
  const Task& task = placed.task;
  const std::int64_t pairs = allowed_pairs(task.q, keys, task.band);
  if (pairs == 0) return 0;
  // A row of blocks reads a whole block of keys or none of it.
  const TokenOrder& order = workload.order;
  const std::int64_t rows =
      order.natural() ? workload.sparse.block : std::min(workload.sparse.block, order.run);
  const double queries = static_cast<double>(pairs) / static_cast<double>(keys.size());
  const double blocks = queries / static_cast<double>(std::max<std::int64_t>(rows, 1));
  const auto heads = static_cast<double>(task.heads.size()) /
                     static_cast<double>(workload.shape.key_heads(task.heads).size());
  return blocks * heads * std::log1p(-placed.kept);
}

/// Edges of ranges of keys that the same tasks read, about equally often.
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

/// Expected rows of K (and as many of V) of one document that a server's tasks read from elsewhere.
/// @param homes  the server's homes of the document
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
    const Range heads = plan.workload.shape.key_heads({first_head, end_head});
    const std::int64_t row = 2 * move_bytes(plan.workload.shape, Tensor::k, {0, 1}, heads);
    bytes.needed +=
        rows_needed(plan.workload, list, homes[{server, document}]) * static_cast<double>(row);
  }
  return bytes;
}

}  // namespace cadenza::plan
