// SPDX-License-Identifier: Apache-2.0
#include "simulate/work.hpp"

#include <algorithm>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/plan/index.hpp"
#include "cadenza/plan/predict.hpp"
#include "cadenza/program/operation_work.hpp"
#include "cadenza/simulate/costs.hpp"

namespace cadenza::simulate {
using program::Pass;
using program::TickPlans;

Work::Work(const program::StepShape& step_shape, std::span<const TickPlans> tick_plans,
           const Costs& costs)
    : ranks_(static_cast<std::size_t>(step_shape.layout.pool_size())),
      halves_(static_cast<std::size_t>(step_shape.halves)),
      tick_plans_(tick_plans) {
  for (const TickPlans& tick : tick_plans) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      attention_[at(pass)].push_back(stages(tick, pass, costs));
    }
    rows_.push_back(rows_of(tick));
    estimates_.push_back(estimates_of(tick, costs));
  }
}

Work::Stages Work::stages(const TickPlans& tick, Pass pass, const Costs& costs) const {
  const plan::Plan& plan = tick.of(pass);
  const program::Traffic& traffic = tick.traffic(pass);
  Stages stages;
  std::vector<const plan::PlacedTask*> tasks;
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
    std::vector<Attention>& ranks = stages.emplace_back(ranks_);
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      tasks.clear();
      for (const std::uint32_t task :
           traffic.of(static_cast<Rank>(rank), static_cast<int>(stage)).tasks) {
        tasks.push_back(&plan.stages[stage].tasks[task]);
        ranks[rank].flops += tasks.back()->cost;
      }
      if (!tasks.empty()) ranks[rank].seconds = costs.attend(tasks, pass);
    }
  }
  return stages;
}

std::vector<std::int64_t> Work::rows_of(const TickPlans& tick) const {
  std::vector<std::int64_t> rows(ranks_, 0);
  const plan::Workload& workload = tick.forward.workload;
  for (const plan::Home& home : workload.homes) {
    const Range queries = workload.queries_of(static_cast<std::size_t>(home.document));
    rows[at(home.rank)] += std::max<std::int64_t>(0, intersect(home.tokens, queries).size());
  }
  return rows;
}

const Attention& Work::attention(const program::Instruction& instruction, Rank rank) const {
  return attention_[at(instruction.pass)][at(instruction.plan)][at(instruction.stage)][at(rank)];
}

const program::Traffic& Work::traffic(const program::Instruction& instruction) const {
  return tick_plans_[at(instruction.plan)].traffic(instruction.pass);
}

const program::Traffic& Work::index_traffic(const program::Instruction& instruction) const {
  return tick_plans_[at(instruction.plan)].index_traffic(instruction.pass);
}

double Work::estimate(const program::Instruction& instruction, Rank rank) const {
  return estimates_[at(instruction.plan)][at(instruction.stage)][at(rank)];
}

Work::Estimates Work::estimates_of(const TickPlans& tick, const Costs& costs) const {
  const plan::Workload& workload = tick.forward.workload;
  Estimates rounds(tick.forward.index.size(), std::vector<double>(ranks_, 0.0));
  if (rounds.empty()) return rounds;
  for (const plan::IndexParts& parts : plan::index_parts(workload)) {
    for (std::size_t n = 0; n < parts.holders.size(); ++n) {
      for (std::size_t round = 0; round < rounds.size(); ++round) {
        const auto which = static_cast<plan::IndexRound>(round);
        rounds[round][at(parts.holders[n])] +=
            costs.index_seconds(plan::index_work(workload, parts, n, which));
      }
    }
  }
  return rounds;
}

std::int64_t Work::rows(const program::Instruction& instruction, Rank rank) const {
  return rows_[at(instruction.plan)][at(rank)];
}

std::int64_t Work::all_rows(const program::Instruction& instruction, Rank rank) const {
  const auto plan = static_cast<std::size_t>(instruction.plan);
  std::int64_t sum = 0;
  for (std::size_t half = 0; half < halves_; ++half) {
    sum += rows_[plan - plan % halves_ + half][at(rank)];
  }
  return sum;
}

Costs::Costs(const config::Machine& machine, const config::Experiment& experiment,
             const program::Layout& layout)
    : Rates(machine, experiment.cluster, experiment.model.head_dim()), shapes_(experiment, layout) {
  if (experiment.cluster.machine.empty() || machine.dtype == experiment.run.dtype) return;
  fail(ExitCode::usage,
       "cluster.machine: found {}, measured in {}; valid: a machine "
       "measured in run.dtype = {}",
       experiment.cluster.machine, config::word_of(machine.dtype),
       config::word_of(experiment.run.dtype));
}

double Costs::attend(std::span<const plan::PlacedTask* const> tasks, program::Pass pass) const {
  double seconds = 0;
  for (const plan::PlacedTask* placed : tasks) {
    seconds = plan::with_task(seconds, *placed, pass, *this);
  }
  return seconds;
}

double Costs::compute(const program::Instruction& instruction, Rank rank, std::int64_t rows) const {
  return program::seconds_of(instruction, shapes_.work(instruction, rank, rows), *this);
}

}  // namespace cadenza::simulate
