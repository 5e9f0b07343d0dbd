// SPDX-License-Identifier: Apache-2.0
// The executor: runs a rank's program with real tensors.
#pragma once

#include <memory>
#include <optional>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/data/corpus.hpp"
#include "cadenza/exec/exchange.hpp"
#include "cadenza/exec/tracer.hpp"
#include "cadenza/model/llama.hpp"
#include "cadenza/program/step_plan.hpp"

namespace cadenza::exec {

/// What a step did, the same on all ranks.
struct StepResult {
  double loss = 0;           ///< mean over the step's targets, before the update
  double gradient_norm = 0;  ///< before clipping
  double learning_rate = 0;
};

template <typename Real>
class Executor {
 public:
  using Sum = Accumulator<Real>;

  /// Collective over `world`: trainers are ranks [0, parallel.trainers()), attention servers
  /// follow.
  Executor(const config::Experiment& experiment, comm::Communicator& world,
           const data::Corpus& corpus, Tracer& tracer, MemoryLedger& ledger);

  /// Collective. @throws Error(communication) when ranks hold different plans.
  StepResult run(const program::StepPlan& plan);

  /// Null on dedicated servers.
  const model::Parameters<Real>* parameters() const {
    return parameters_ ? &*parameters_ : nullptr;
  }
  bool is_trainer() const { return parameters_.has_value(); }

 private:
  void agree_on_plan(const program::StepPlan& plan);
  void run_operation(const program::Step& step, const program::StepPlan& plan);
  void load_microbatch(const program::StepPlan& plan, int tick);
  void run_dense(const program::Step& step);
  void run_attention(const program::Step& step);
  void reduce_gradients();
  void optimize(std::int64_t step);

  config::Experiment experiment_;
  comm::Communicator& world_;
  std::unique_ptr<comm::Communicator> trainers_;  ///< trainers among themselves, servers likewise
  const data::Corpus& corpus_;
  Tracer& tracer_;
  kernels::RotaryTable<Sum> rotary_;
  std::optional<model::Parameters<Real>> parameters_;
  HostArray<Sum> gradients_;  ///< where the host sums them; the device's own on a host build
  std::optional<model::Llama<Real>> llama_;
  model::TokenBatch batch_;
  AttentionExchange<Real> exchange_;
  std::array<std::uint16_t, 16> names_{};  ///< of operations, forward then backward
  int bound_tick_ = -1;
  double loss_scale_ = 0;  ///< 1 / targets of the step
  double loss_sum_ = 0;    ///< of this rank
  StepResult result_;
};

}  // namespace cadenza::exec
