// SPDX-License-Identifier: Apache-2.0
// The executor runs a rank's program with real tensors.
//
// For each step, every rank makes the same plan without messages; run() first agrees on its hash.
// It then binds the plan (which rows of which buffer each task and message uses; buffers grow here,
// so that nothing allocates later), and runs the rank's program operation by operation, in the
// order in which the simulator prices it. Attention operations go to the AttentionExchange of their
// half, all others to the Trainer; dedicated servers have no Trainer. Between operations the pool's
// messages make progress, because MPI moves them only when it is called. At the end the executor
// completes all messages, checks that each pair of the sparse indices was computed once, and sums
// the loss and the sparse counts over all ranks.
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
#include "cadenza/model/hugging_face.hpp"
#include "cadenza/model/llama.hpp"
#include "cadenza/program/step_plan.hpp"

namespace cadenza::exec {

using program::DocumentLoss;
using program::StepResult;

template <typename Real>
class Trainer;
struct Groups;

template <typename Real>
class Executor {
 public:
  using Sum = Accumulator<Real>;

  /// Collective over `world`, whose ranks program::Layout places.
  Executor(const config::Experiment& experiment, comm::Communicator& world,
           const data::Corpus& corpus, Tracer& tracer, MemoryLedger& ledger);
  ~Executor();

  /// Runs one step. Collective. @throws Error(communication) if ranks have different plans
  StepResult run(const program::StepPlan& plan);

  /// Writes all parameters and moments to `path` on rank 0. Collective.
  void write_checkpoint(const std::string& path, std::int64_t step,
                        const SparseEstimates& estimates = {},
                        const config::FileContents& contents = {});
  /// Makes every trainer read its own parameters and moments. @throws Error(data) on any rank
  void read_checkpoint(const model::CheckpointReader& checkpoint);
  /// Makes every trainer read its own parameters; moments become zeros. @throws Error(data)
  void read_parameters(const model::HuggingFaceFolder& folder);

  /// This rank's rows of /positions and /answers for the last step.
  std::vector<trace::PositionLoss> position_losses() const;
  std::vector<trace::AnswerLoss> answer_losses() const;
  /// Losses of the last step's documents, in their order, added up over all ranks. Collective.
  /// @param documents  their number
  std::vector<DocumentLoss> document_losses(std::int64_t documents) const;

  /// Returns this rank's parameters; null on dedicated servers.
  const model::Parameters<Real>* parameters() const;

 private:
  void agree_on_plan(const program::StepPlan& plan);
  void bind(const program::StepPlan& plan);
  void enter_nccl(const program::StepPlan& plan);
  void run_operation(const program::Instruction& instruction, const program::StepPlan& plan);
  void sample_recall(const program::Instruction& instruction, std::int64_t step);
  std::optional<StepResult::LayerRecall> agree_on_recall();
  AttentionContext<Real> context_of(const program::Instruction& instruction);
  void run_attention(const program::Instruction& instruction);
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
  std::int64_t nccl_bytes_ = 0;  ///< in the ledger: the largest that the plans of a step needed
  int sampled_layer_ = -1;       ///< whose recall the step measures; -1: none
  std::vector<std::vector<SparseRule>> rules_;  ///< by layer and head; empty: the plans' rule
  std::unique_ptr<Trainer<Real>> trainer_;      ///< null on dedicated servers
  std::vector<std::unique_ptr<AttentionExchange<Real>>> exchange_;  ///< by half of the microbatch
  double loss_scale_ = 0;                                           ///< 1 / targets of the step
};

}  // namespace cadenza::exec
