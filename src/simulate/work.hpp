// SPDX-License-Identifier: Apache-2.0
// Work of the plans of a step on every rank: seconds of attention and rows, computed once per plan
// and used for all its layers.
#pragma once

#include <span>
#include <vector>

#include "cadenza/program/program.hpp"
#include "cadenza/program/traffic.hpp"
#include "cadenza/simulate/costs.hpp"

namespace cadenza::simulate {

/// A rank's tasks in a stage.
struct Attention {
  double seconds = 0;
  double flops = 0;
};

class Work {
 public:
  Work(const program::StepShape& step_shape, std::span<const program::TickPlans> tick_plans,
       const Costs& costs);

  /// @param rank  as the plan counts ranks
  const Attention& attention(const program::Instruction& instruction, Rank rank) const;
  const program::Traffic& traffic(const program::Instruction& instruction) const;
  /// Traffic of the instruction's index rounds.
  const program::Traffic& index_traffic(const program::Instruction& instruction) const;
  /// Seconds that a rank computes in the instruction's index round.
  double estimate(const program::Instruction& instruction, Rank rank) const;
  /// Tokens of a rank in the instruction's half of a microbatch.
  std::int64_t rows(const program::Instruction& instruction, Rank rank) const;
  /// Tokens of a rank in the whole microbatch of the instruction.
  std::int64_t all_rows(const program::Instruction& instruction, Rank rank) const;

 private:
  /// By stage and rank.
  using Stages = std::vector<std::vector<Attention>>;
  Stages stages(const program::TickPlans& tick, program::Pass pass, const Costs& costs) const;
  /// Seconds by index round and rank.
  using Estimates = std::vector<std::vector<double>>;
  Estimates estimates_of(const program::TickPlans& tick, const Costs& costs) const;
  std::vector<std::int64_t> rows_of(const program::TickPlans& tick) const;

  std::size_t ranks_;
  std::size_t halves_;
  std::span<const program::TickPlans> tick_plans_;
  std::vector<Stages> attention_[2];             ///< by pass and plan (PlanIndex)
  std::vector<std::vector<std::int64_t>> rows_;  ///< by plan and rank
  std::vector<Estimates> estimates_;             ///< by plan
};

}  // namespace cadenza::simulate
