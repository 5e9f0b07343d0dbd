// SPDX-License-Identifier: Apache-2.0
// The trainer runs all operations of a step except attention: its part of the model forward and
// backward, the sums of gradients, and the update.
//
// For each microbatch the program calls: load (tokens, positions and targets of the rows at home),
// embed or receive (the residual stream of the previous pipeline stage), then per layer
// attention_inputs (norm, Q, K, V) and, after the exchange ran core attention, attention_outputs
// (projection, feed-forward), and at last loss or send. The backward pass runs the same in reverse
// and recomputes what the forward pass did not keep. reduce_layer starts a layer's gradient sum as
// soon as its gradients are complete, so that it overlaps with the rest of the backward pass;
// reduce_gradients completes all. Then the trainers agree on the gradient norm, which clipping
// needs, update the parameters they own and, with a sharded optimizer (ZeRO-1), gather the updated
// ones.
#pragma once

#include <optional>
#include <string>

#include "cadenza/base/sparse_density.hpp"
#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/data/corpus.hpp"
#include "cadenza/exec/executor.hpp"
#include "cadenza/kernels/host_store.hpp"
#include "cadenza/model/checkpoint.hpp"
#include "cadenza/model/hugging_face.hpp"
#include "cadenza/model/llama.hpp"
#include "cadenza/program/layout.hpp"
#include "cadenza/program/operation_work.hpp"
#include "exec/collectives/gradients.hpp"
#include "exec/collectives/pipeline_p2p.hpp"
#include "exec/collectives/tensor_collectives.hpp"
#include "exec/losses.hpp"

namespace cadenza::exec {

/// Gathers the parameters and moments of all trainers on rank 0, which writes them to `path`: a
/// checkpoint does not depend on the layout that wrote it. Collective over `trainers`; only rank 0
/// throws if writing fails.
template <typename Real>
void write_checkpoint(const config::Experiment& experiment, const program::Layout& layout,
                      comm::Communicator& trainers, const model::Parameters<Real>& parameters,
                      GradientReducer<Real>& gradients, const SparseEstimates& estimates,
                      const config::FileContents& contents, const std::string& path,
                      std::int64_t step);

template <typename Real>
class Trainer {
 public:
  using Sum = Accumulator<Real>;

  Trainer(const config::Experiment& experiment, const program::StepShape& step_shape,
          comm::Communicator& world, Groups& groups, const kernels::RotaryTable<Sum>& rotary,
          const data::Corpus& corpus, Tracer& tracer, MemoryLedger& ledger);

  /// Prepares a step: makes room for its microbatches and zeroes gradients.
  void begin_step(const program::StepPlan& plan, std::int64_t rows, double loss_scale);
  /// Runs an operation of the program that is not attention.
  /// @param home  rows of this rank's tokens in the instruction's microbatch
  void run(const program::Instruction& instruction, const program::StepPlan& plan,
           const HomeRows& home);

  /// Completes the residual streams that were sent: after an update all have arrived, as the
  /// gradient norm is global, so that this does not block.
  void finish_step() { streams_.finish(); }

  model::AttentionBuffers<Real> attention_buffers(const program::Instruction& instruction) {
    return llama_->attention_buffers(instruction.buffer, instruction.layer);
  }
  const model::Parameters<Real>& parameters() const { return parameters_; }
  double loss_sum() const { return loss_sum_; }  ///< of this rank in this step so far
  /// Losses of this step so far, on the first tensor rank of the last pipeline stage; otherwise
  /// empty.
  const LossRecord& losses() const { return losses_; }
  double gradient_norm() const { return gradient_norm_; }
  double learning_rate() const { return learning_rate_; }

  /// Writes all parameters and moments, on rank 0. Collective over trainers.
  void write_checkpoint(const std::string& path, std::int64_t step,
                        const SparseEstimates& estimates, const config::FileContents& contents);
  /// Replaces this rank's parameters and moments.
  void read_checkpoint(const model::CheckpointReader& checkpoint) { checkpoint.read(parameters_); }
  void read_parameters(const model::HuggingFaceFolder& folder) { folder.read(parameters_); }

 private:
  void load(const program::Instruction& instruction, const program::StepPlan& plan,
            const HomeRows& home);
  template <typename Compute>
  void run_rows(const program::Instruction& instruction, Range rows, Compute compute);
  void add_loss(const program::Instruction& instruction, Range rows);
  void run_layer(const program::Instruction& instruction, Range rows);
  void send(const program::Instruction& instruction, Range rows);
  void receive(const program::Instruction& instruction, Range rows);
  void copy(const program::Instruction& instruction);
  void reduce(const program::Instruction& instruction);
  void gather_parameters();
  void measure_gradient();
  void optimize(std::int64_t step);

  config::Experiment experiment_;
  const program::StepShape& step_shape_;
  const program::Layout& layout_;
  Groups& groups_;
  comm::Communicator& world_;
  const data::Corpus& corpus_;
  Tracer& tracer_;
  program::Coordinates at_;
  model::ModelPart part_;
  bool shards_;
  model::Parameters<Real> parameters_;
  TensorCollectives<Sum> tensor_;
  std::optional<model::Llama<Real>> llama_;
  GradientReducer<Real> gradients_;
  PipelineP2p streams_;
  std::optional<HostStore> store_;  ///< with offloading
  model::TokenBatch batch_;
  std::vector<RowPlaces> places_;  ///< of the microbatch in each buffer
  int buffers_ = 0;
  MemoryLedger& ledger_;
  const kernels::RotaryTable<Sum>& rotary_;
  program::OperationShapes shapes_;
  double loss_scale_ = 0;
  double loss_sum_ = 0;
  LossRecord losses_;
  double gradient_norm_ = 0;
  double learning_rate_ = 0;
};

}  // namespace cadenza::exec
