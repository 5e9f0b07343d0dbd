// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "cadenza/base/units.hpp"
#include "cadenza/plan/report.hpp"
#include "summary.hpp"

namespace cadenza::plan {
namespace {

struct Row {
  std::int64_t tokens = 0;
  std::int64_t tasks = 0;
};

std::vector<Row> rows(const Plan& plan) {
  std::vector<Row> rows(static_cast<std::size_t>(plan.workload.ranks));
  for (const Home& home : plan.workload.homes) {
    rows[static_cast<std::size_t>(home.rank)].tokens += home.tokens.size();
  }
  for (const Stage& stage : plan.stages) {
    for (const PlacedTask& placed : stage.tasks) {
      ++rows[static_cast<std::size_t>(placed.server)].tasks;
    }
  }
  return rows;
}

double mean_cost(const Plan& plan) {
  const double total = std::accumulate(plan.cost_per_rank.begin(), plan.cost_per_rank.end(), 0.0);
  return total / static_cast<double>(std::max<std::size_t>(1, plan.workload.servers.size()));
}

std::int64_t total_bytes(const Plan& plan) {
  return std::accumulate(plan.bytes_sent_per_rank.begin(), plan.bytes_sent_per_rank.end(),
                         std::int64_t{0});
}

void write_tick(std::string& text, const Plan& plan, std::size_t tick) {
  auto out = std::back_inserter(text);
  const std::vector<std::int64_t>& lengths = plan.workload.lengths;
  fmt::format_to(out, "tick {}: {} documents, {} tokens, longest {}, imbalance {:.3f}\n", tick,
                 lengths.size(), std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}),
                 lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()),
                 imbalance(plan));
  fmt::format_to(out, "{:>6}  {:>9}  {:>6}  {:>10}  {:>7}  {:>10}\n", "rank", "tokens", "tasks",
                 "FLOPs", "of mean", "sent");
  const std::vector<Row> table = rows(plan);
  const double mean = mean_cost(plan);
  for (std::size_t rank = 0; rank < table.size(); ++rank) {
    const double cost = plan.cost_per_rank[rank];
    const std::string share = mean > 0 ? fmt::format("{:.1f} %", 100 * cost / mean) : "-";
    fmt::format_to(out, "{:>6}  {:>9}  {:>6}  {:>10}  {:>7}  {:>10}\n", rank, table[rank].tokens,
                   table[rank].tasks, format_count(cost), share,
                   format_bytes(static_cast<double>(plan.bytes_sent_per_rank[rank])));
  }
  text += '\n';
}

/// Layers take microseconds on a device, seconds on a host.
std::string seconds(double value) {
  if (value > 0 && value < 1e-3) return fmt::format("{:.3g} us", value * 1e6);
  if (value > 0 && value < 1.0) return fmt::format("{:.3g} ms", value * 1e3);
  return format_duration(value);
}

}  // namespace

std::string to_table(const std::vector<Plan>& ticks) {
  std::string text;
  for (std::size_t tick = 0; tick < ticks.size(); ++tick) write_tick(text, ticks[tick], tick);
  const Summary summary = summarize(ticks);
  fmt::format_to(std::back_inserter(text),
                 "step: {} tick{}, {} FLOPs, imbalance {:.3f}, {} sent; forward of one layer: "
                 "{} predicted, {} at best\n",
                 ticks.size(), ticks.size() == 1 ? "" : "s",
                 format_count(mean_cost(summary.total) *
                              static_cast<double>(summary.total.workload.servers.size())),
                 imbalance(summary.total),
                 format_bytes(static_cast<double>(total_bytes(summary.total))),
                 seconds(summary.prediction.predicted_seconds),
                 seconds(summary.prediction.lower_bound_seconds));
  return text;
}

}  // namespace cadenza::plan
