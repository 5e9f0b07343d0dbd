// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "app/planner/predict/forecast.hpp"
#include "app/planner/simulate/simulation.hpp"
#include "app/planner/step_report.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/cost/flops.hpp"
#include "cadenza/simulate/recording.hpp"

namespace cadenza::app {
namespace {

/// Calls visit(share of a, share of b) for every class.
template <typename Visit>
void for_each(TimeShares& a, const TimeShares& b, Visit visit) {
  visit(a.attention, b.attention);
  visit(a.dense, b.dense);
  visit(a.copies, b.copies);
  visit(a.optimizer, b.optimizer);
  visit(a.waiting, b.waiting);
  visit(a.collectives, b.collectives);
  visit(a.idle, b.idle);
}

/// Mean over the ranks of a step.
TimeShares mean_shares(const simulate::Result& result) {
  TimeShares mean;
  const auto ranks = static_cast<double>(result.ranks.size());
  for (const simulate::RankTimes& times : result.ranks) {
    for_each(mean, shares_of(times, result.seconds),
             [&](double& sum, double share) { sum += share / ranks; });
  }
  return mean;
}

std::string memory_text(std::int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

std::string ranks_text(Rank first, std::int64_t count) {
  if (count == 1) return fmt::format("rank {}", first);
  return fmt::format("each of ranks {} to {}", first, first + count - 1);
}

}  // namespace

TimeShares shares_of(const simulate::RankTimes& times, double step_seconds) {
  if (step_seconds <= 0) return {};
  TimeShares shares;
  shares.attention = times.attention / step_seconds;
  shares.dense = (times.dense + times.other) / step_seconds;
  shares.copies = times.copies / step_seconds;
  shares.optimizer = times.optimizer / step_seconds;
  shares.waiting = times.waiting / step_seconds;
  shares.collectives = times.collectives / step_seconds;
  shares.idle =
      std::max(0.0, 1.0 - (times.busy() + times.waiting + times.collectives) / step_seconds);
  return shares;
}

std::vector<RankStep> rank_steps(const Simulation& simulation, const SimulatedStep& step) {
  std::vector<RankStep> ranks(step.result.ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::size_t program = simulation.program_of(static_cast<Rank>(rank));
    const simulate::RankTimes& times = step.result.ranks[rank];
    RankStep& mine = ranks[rank];
    mine.attention_ns = simulate::nanoseconds(times.attention);
    mine.busy_ns = simulate::nanoseconds(times.busy());
    mine.wait_ns = simulate::nanoseconds(times.waiting);
    mine.communication_ns = simulate::nanoseconds(times.collectives);
    mine.slowest_attention_ns = simulate::nanoseconds(step.result.slowest_attention);
    mine.flops = times.flops;
    mine.attention_flops = times.attention_flops;
    mine.bytes_sent = times.bytes_sent;
    mine.peak_bytes = step.memory[program].total();
    mine.step_ns = simulate::nanoseconds(step.result.seconds - times.begin);
  }
  return ranks;
}

MemoryVerdict judge_memory(const Simulation& simulation, const SimulatedStep& step) {
  const config::Experiment& e = simulation.experiment();
  MemoryVerdict verdict;
  verdict.sharded = sharded_text(e.parallel);
  verdict.limit = memory_of_rank(e, simulation.machine());
  const std::size_t fullest = step.fullest();
  for (const exec::MemoryEstimate& memory : step.memory) {
    verdict.mean += memory.total() / std::ssize(step.memory);
  }
  verdict.smallest = std::ranges::min(step.memory, {}, &exec::MemoryEstimate::total).total();
  verdict.fullest = step.programs[fullest].rank;
  verdict.largest = step.memory[fullest].total();
  verdict.parts = step.memory[fullest];
  if (verdict.limit == 0) return verdict;
  const std::int64_t each = e.ranks() / static_cast<std::int64_t>(step.programs.size());
  for (std::size_t i = 0; i < step.memory.size(); ++i) {
    const exec::MemoryEstimate& memory = step.memory[i];
    if (memory.total() <= verdict.limit) continue;
    verdict.ranks_beyond += each;
    verdict.beyond.push_back(fmt::format("{} needs {} (most of it: {})",
                                         ranks_text(step.programs[i].rank, each),
                                         memory_text(memory.total()), memory.largest()));
  }
  return verdict;
}

std::string MemoryVerdict::text() const {
  const std::string most =
      fmt::format("rank {} needs the most, {} (most of it: {}); the smallest need is {}; {}",
                  fullest, memory_text(largest), parts.largest(), memory_text(smallest), sharded);
  if (limit == 0) return most + "; memory limit unknown (set run.memory)";
  if (fits()) return fmt::format("fits in {}: {}", memory_text(limit), most);
  return fmt::format("out of memory on {} {}: each has {}, {}", ranks_beyond,
                     ranks_beyond == 1 ? "rank" : "ranks", memory_text(limit), most);
}

void add_step(const Simulation& simulation, const SimulatedStep& step, SimulationSummary& summary) {
  const config::Experiment& e = simulation.experiment();
  const simulate::Result& result = step.result;
  const double peak = simulation.machine().peak_flops_per_second * static_cast<double>(e.ranks());
  const std::vector<RankStep> ranks = rank_steps(simulation, step);
  const StepMetrics metrics = step_metrics(e, step.batch, ranks, peak);

  summary.ranks = e.ranks();
  summary.steps.push_back(result.seconds);
  const double weight = 1.0 / static_cast<double>(summary.steps.size());
  const auto add = [weight](double& mean, double value) { mean += (value - mean) * weight; };
  add(summary.seconds, result.seconds);
  add(summary.lower_bound_seconds, result.lower_bound_seconds);
  add(summary.attention_imbalance, metrics.attention_imbalance);
  add(summary.tokens, static_cast<double>(metrics.tokens));
  add(summary.bytes_sent, static_cast<double>(metrics.bytes_moved));
  add(summary.model_flops, cost::model_flops(e.model, e.attention, step.batch.lengths()));
  if (peak > 0) summary.model_flops_utilization = summary.model_flops / (summary.seconds * peak);
  const double part_of_time = result.seconds * weight / summary.seconds;
  for_each(summary.shares, mean_shares(result),
           [&](double& mean, double share) { mean += (share - mean) * part_of_time; });

  const MemoryVerdict memory = judge_memory(simulation, step);
  if (memory.largest > summary.memory.largest) summary.memory = memory;
  summary.notes = simulation.extrapolations();
}

SimulationSummary simulate_experiment(const config::Experiment& experiment,
                                      const config::Machine& machine, std::int64_t first,
                                      std::int64_t steps) {
  Simulation simulation(experiment, machine);
  SimulationSummary summary;
  for (std::int64_t step = first; step < first + steps; ++step) {
    add_step(simulation, simulation.run(step), summary);
  }
  return summary;
}

}  // namespace cadenza::app
