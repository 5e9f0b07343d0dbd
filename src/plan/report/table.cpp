// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "cadenza/base/at.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/plan/report.hpp"
#include "plan/report/summary.hpp"

namespace cadenza::plan {
namespace {

struct Row {
  std::int64_t tokens = 0;
  std::int64_t tasks = 0;
};

std::vector<Row> rows(const Plan& plan) {
  std::vector<Row> rows(static_cast<std::size_t>(plan.workload.ranks));
  for (const Home& home : plan.workload.homes) {
    rows[at(home.rank)].tokens += home.tokens.size();
  }
  for (const Stage& stage : plan.stages) {
    for (const PlacedTask& placed : stage.tasks) {
      ++rows[at(placed.server)].tasks;
    }
  }
  return rows;
}

double total_cost(const Plan& plan) {
  return std::accumulate(plan.cost_per_rank.begin(), plan.cost_per_rank.end(), 0.0);
}

std::int64_t total_bytes(const Plan& plan) {
  return std::accumulate(plan.bytes_sent_per_rank.begin(), plan.bytes_sent_per_rank.end(),
                         std::int64_t{0});
}

std::string title(const Workload& workload, const Place& place) {
  std::string text = fmt::format("tick {}{}", place.tick, describe_layers(workload));
  if (!workload.queries.empty()) text += place.half == 0 ? ", first half" : ", second half";
  return text;
}

void write_plan(std::string& text, const Plan& plan, const Place& place,
                const Prediction& prediction, const StepNotes& notes) {
  auto out = std::back_inserter(text);
  const std::vector<std::int64_t>& lengths = plan.workload.lengths;
  fmt::format_to(out, "{}: {}, {} tokens, longest {}\n", title(plan.workload, place),
                 counted(std::ssize(lengths), "document"),
                 std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}),
                 lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()));
  fmt::format_to(
      out, "imbalance {:.3f} (before balancing {:.3f}); attention {} predicted, lower bound {}\n",
      imbalance(plan), imbalance_at_home(plan.workload, cost_at_home(plan.workload)),
      format_duration(prediction.predicted_seconds),
      format_duration(prediction.lower_bound_seconds));
  if (!plan.trials.empty()) fmt::format_to(out, "tolerance {}\n", describe(plan.trials));
  const bool memory = !notes.peak_bytes_per_rank.empty();
  constexpr const char* kRow = "  {:>9}  {:>6}  {:>10}  {:>7}  {:>10}";
  std::string header =
      fmt::format(kRow, "tokens", "tasks", "FLOPs",
                  plan.workload.capacities.empty() ? "of mean" : "of share", "sent");
  if (memory) header += fmt::format("  {:>10}", "memory");
  const std::vector<Row> table = rows(plan);
  const std::vector<double> fair = fair_costs(plan);
  std::vector<std::string> lines;
  for (std::size_t rank = 0; rank < table.size(); ++rank) {
    const double cost = plan.cost_per_rank[rank];
    const std::string share =
        fair[rank] > 0 ? fmt::format("{:.1f} %", 100 * cost / fair[rank]) : "-";
    lines.push_back(fmt::format(kRow, table[rank].tokens, table[rank].tasks, format_count(cost),
                                share,
                                format_bytes(static_cast<double>(plan.bytes_sent_per_rank[rank]))));
    if (!memory) continue;
    const auto bytes = static_cast<double>(notes.peak_bytes_per_rank.at(rank));
    lines.back() += fmt::format("  {:>10}", format_bytes(bytes));
  }
  text += rank_table(header, lines, plan.cost_per_rank, "FLOPs");
  text += '\n' + draw(plan, place.first_document) + '\n';
}

std::string delays(const StepNotes& notes) {
  const auto late = std::count_if(notes.delays.begin(), notes.delays.end(),
                                  [](std::int64_t delay) { return delay > 0; });
  if (late == 0) return {};
  return fmt::format("{} of {} documents delayed, by up to {} steps\n", late, notes.delays.size(),
                     *std::max_element(notes.delays.begin(), notes.delays.end()));
}

/// The ratio of keys moved to keys needed, in words; empty where no keys move.
std::string moved_over_needed(const std::vector<Plan>& plans, const KeyBytes& keys) {
  if (keys.moved == 0) return {};
  const bool expected = !plans.front().workload.density.empty();
  return fmt::format(" (K and V moved / {}needed {:.2f})", expected ? "expected to be " : "",
                     static_cast<double>(keys.moved) / keys.needed);
}

}  // namespace

std::string to_table(const std::vector<Plan>& plans, const StepNotes& notes) {
  std::string text;
  const std::vector<Place> where = places(plans);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    write_plan(text, plans[i], where[i], prediction_of(plans, i, notes), notes);
  }
  const Summary summary = summarize(plans, notes);
  const int ticks = plans.empty() ? 0 : where.back().tick + 1;
  text += delays(notes);
  if (notes.padding > 0) {
    text += fmt::format("microbatches have room for {} more\n", counted(notes.padding, "token"));
  }
  if (!notes.estimate.empty()) text += fmt::format("sparse attention: by {}\n", notes.estimate);
  fmt::format_to(
      std::back_inserter(text),
      "step: {}, {} FLOPs, imbalance {:.3f} (before balancing {:.3f}), {} sent{}; "
      "attention, forward of one layer: {} predicted ({}), lower bound {}\n",
      counted(ticks, "tick"), format_count(total_cost(summary.total)), imbalance(summary.total),
      summary.imbalance_at_home, format_bytes(static_cast<double>(total_bytes(summary.total))),
      moved_over_needed(plans, summary.keys), format_duration(summary.prediction.predicted_seconds),
      rates_of(notes), format_duration(summary.prediction.lower_bound_seconds));
  return text;
}

}  // namespace cadenza::plan
