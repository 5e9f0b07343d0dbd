// SPDX-License-Identifier: Apache-2.0
// The executor: runs a rank's program with real tensors.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/data/corpus.hpp"
#include "cadenza/exec/exchange.hpp"
#include "cadenza/exec/tracer.hpp"
#include "cadenza/model/checkpoint.hpp"
#include "cadenza/model/llama.hpp"
#include "cadenza/program/step_plan.hpp"

namespace cadenza::exec {

using program::StepResult;

/// The layers that a trainer holds.
model::ModelPart model_part(const config::Experiment& experiment, const program::Layout& layout,
                            Rank trainer);

template <typename Real>
class Trainer;
struct Groups;

template <typename Real>
class Executor {
 public:
  using Sum = Accumulator<Real>;

  /// Collective over `world`: ranks are laid out as program::Layout says.
  Executor(const config::Experiment& experiment, comm::Communicator& world,
           const data::Corpus& corpus, Tracer& tracer, MemoryLedger& ledger);
  ~Executor();

  /// Collective. @throws Error(communication) when ranks hold different plans.
  StepResult run(const program::StepPlan& plan);

  /// Writes all parameters and moments to `path` on rank 0. Collective.
  void write_checkpoint(const std::string& path, std::int64_t step,
                        const SparseEstimates& estimates = {},
                        const config::FileContents& contents = {});
  /// Every trainer reads its own parameters and moments. @throws Error(data) on any rank
  void read_checkpoint(const model::CheckpointReader& checkpoint);

  /// Of the last step: this rank's rows of /positions and /answers.
  std::vector<trace::PositionLoss> position_losses() const;
  std::vector<trace::AnswerLoss> answer_losses() const;

  /// Null on dedicated servers.
  const model::Parameters<Real>* parameters() const;

 private:
  void agree_on_plan(const program::StepPlan& plan);
  void bind(const program::StepPlan& plan);
  void enter_nccl(const program::StepPlan& plan);
  void run_operation(const program::Step& step, const program::StepPlan& plan);
  AttentionContext<Real> context_of(const program::Step& step);
  void run_attention(const program::Step& step);
  StepResult agree_on_result(const program::StepPlan& plan);
  SparseCounts agree_on_counts(const program::StepPlan& plan);

  config::Experiment experiment_;
  program::StepShape step_shape_;
  comm::Communicator& world_;
  std::unique_ptr<Groups> groups_;
  Tracer& tracer_;
  MemoryLedger& ledger_;
  comm::ActivityScope activity_;
  DeviceWaitScope device_wait_;
  kernels::RotaryTable<Sum> rotary_;
  std::int64_t nccl_bytes_ = 0;  ///< in the ledger: the most that any step's plans asked for
  int sampled_layer_ = -1;       ///< of the model, whose recall a step asks for; -1: all are dense
  std::vector<std::vector<SparseRule>> rules_;  ///< by layer and head; empty: as the plans say
  std::unique_ptr<Trainer<Real>> trainer_;      ///< null on dedicated servers
  std::vector<std::unique_ptr<AttentionExchange<Real>>> exchange_;  ///< by part
  double loss_scale_ = 0;                                           ///< 1 / targets of the step
};

}  // namespace cadenza::exec
