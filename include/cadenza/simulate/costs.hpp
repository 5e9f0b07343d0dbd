// SPDX-License-Identifier: Apache-2.0
// Seconds of every operation of a program at a machine's rates (cost/rates.hpp).
#pragma once

#include <cstdint>
#include <span>

#include "cadenza/cost/rates.hpp"
#include "cadenza/plan/index.hpp"
#include "cadenza/plan/plan.hpp"
#include "cadenza/program/operation_work.hpp"
#include "cadenza/program/program.hpp"

namespace cadenza::simulate {

/// The rates of the machine and the times of a program's operations with them. Use it from one
/// thread at a time: calls note which rates they extrapolate.
class Costs : public cost::Rates {
 public:
  /// @throws Error(usage) if cluster.machine has numbers of another dtype than run.dtype
  Costs(const config::Machine& machine, const config::Experiment& experiment,
        const program::Layout& layout);

  /// Seconds of one call of the attention kernel: all tasks of a rank in a stage. `tasks` are of
  /// one server.
  double attend(std::span<const plan::PlacedTask* const> tasks, program::Pass pass) const;

  /// Seconds of load, embed, attention_inputs, begin_attention, attention_outputs, loss,
  /// embed_gradient, gradient_norm or optimize on a rank, without messages and collectives; 0 for
  /// all other operations.
  /// @param rows  tokens of this rank in the operation
  double compute(const program::Instruction& instruction, Rank rank, std::int64_t rows) const;

 private:
  program::OperationShapes shapes_;
};

}  // namespace cadenza::simulate
