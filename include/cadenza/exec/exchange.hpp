// SPDX-License-Identifier: Apache-2.0
// Core attention of one layer through a plan: rows travel to servers, tasks run there, results
// travel back and merge. The executor calls the operations in the order of the rank's program. In
// ping-pong each half of a microbatch has an exchange of its own.
//
// Rows travel unconverted: Q, K, V, dO as Real, and O, LSE, delta, dQ, dK, dV as Accumulator<Real>.
// So the number of ranks does not add rounding errors to a sum.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/exec/index_exchange.hpp"
#include "cadenza/exec/memory/binding.hpp"
#include "cadenza/exec/stage_messages.hpp"
#include "cadenza/exec/tracer.hpp"
#include "cadenza/exec/workspace.hpp"
#include "cadenza/kernels/attention.hpp"
#include "cadenza/model/llama.hpp"

namespace cadenza::exec {

struct StridedRows;

/// The communicators of a pool's messages in one half of the microbatch. Inputs, results and halves
/// have separate communicators, so ranks may post them in different orders without deadlock.
struct AttentionCommunicators {
  DeviceCommunicator& inputs;
  DeviceCommunicator& results;
};

/// The place in a step of the attention operations that follow.
template <typename Real>
struct AttentionContext {
  int plan = 0;   ///< index into the bound plans
  int layer = 0;  ///< number in the trace
  program::Pass pass = program::Pass::forward;
  bool recompute = false;  ///< the forward pass is repeated in the backward pass
  int copy = 0;            ///< index of this layer's copy on a server that keeps its inputs
  model::AttentionBuffers<Real> home;  ///< null rows on dedicated servers
  /// Limits of the sparse patterns, by head of this rank; empty: the plan's rule for all.
  std::span<const SparseRule> rules = {};
};

template <typename Real>
class AttentionExchange {
 public:
  using Sum = Accumulator<Real>;

  /// @param pool  communicators of the ranks that plans name
  /// @param members  their world ranks, for traces
  /// @param half  half of the microbatch, 0 without ping-pong
  AttentionExchange(const AttentionCommunicators& pool, std::vector<Rank> members,
                    const AttentionShape& shape, AttentionKernel kernel,
                    const kernels::RotaryTable<Sum>& rotary, int half, Tracer& tracer,
                    MemoryLedger& ledger);

  /// Takes the plans of a step: of its half, one per tick and class of layers. Grows buffers if a
  /// plan needs more than any before; nothing else allocates memory until the next call.
  /// @param copies  layers x activation buffers: copies of the inputs if plans keep them on servers
  /// @param keeps_patterns  the step chooses sparse patterns for later ones
  /// @throws Error(communication) if a plan was made for elements of other sizes
  void bind(const std::vector<const program::TickPlans*>& tick_plans, int align, int copies,
            bool keeps_patterns);

  /// Sets where the next operations belong. If the tick, layer or pass changes, first completes the
  /// messages of the previous one.
  void set_context(const AttentionContext<Real>& context);
  /// Completes all messages. Call it before the end of a step.
  void finish();
  /// Checks the indices after the last pass of a step: see IndexExchange. Collective.
  void require_all_computed() { index_.require_all_computed(); }
  IndexExchange<Real>& index() { return index_; }
  const Binding& binding(int plan) const { return bindings_[at(plan)]; }

  /// Runs an attention operation of the context's pass:
  /// - begin_attention (backward): computes delta of this rank's own rows;
  /// - post, post_results: packs and starts this rank's messages of a stage;
  /// - wait, wait_results: completes them: places inputs in the workspace, merges results (or adds
  ///   them) at home;
  /// - post_index, wait_index, estimate: see IndexExchange;
  /// - attend: runs this rank's tasks of a stage while messages make progress.
  void run(program::Operation operation, int stage);

 private:
  void begin();
  void start_messages(program::Operation operation, int stage);
  void complete_messages(program::Operation operation, int stage);
  StageCall call_of(program::Operation operation, int stage) const;
  const Direction& direction_of(program::Operation operation, int stage) const;
  void attend(int stage);
  double sparse_flops(const kernels::TaskList<Real>& list) const;
  double dense_flops(const kernels::TaskList<Real>& list) const;
  const Binding& bound() const { return binding(context_.plan); }
  const StageBinding& stage_of(int stage) const;
  std::byte* bytes_of(const MessageSet& messages) const {
    return buffer_.memory() + messages.buffer;
  }
  std::span<std::byte> place_of(const MessageSet& messages, const MessagePart& part) const;
  const model::AttentionBuffers<Real>& buffers_of(bool home) const;
  Real* inputs_of(bool home, plan::Tensor what, std::int64_t head_row) const;
  Sum* sums_of(bool home, plan::Tensor what, std::int64_t head_row) const;
  StridedRows stride_of(const Segment& segment) const;
  void pack(const MessageSet& messages);
  void unpack(const MessageSet& messages);
  void place_input(const Segment& segment, const std::byte* source);
  void begin_outputs(const Segment& segment);
  void merge_output(const MessageSet& messages, const Segment& out);
  void bind_tasks();
  kernels::TaskList<Real>& tasks_of(int stage);

  AttentionCommunicators over_;
  comm::Communicator& pool_;  ///< for host memory
  AttentionShape shape_;
  AttentionKernel kernel_;
  kernels::RotaryTable<Sum> rotary_;
  int half_;
  Tracer& tracer_;
  MemoryLedger& ledger_;
  std::vector<Binding> bindings_;
  AttentionContext<Real> context_;
  Workspace<Real> workspace_;
  MessageBuffer buffer_;
  IndexExchange<Real> index_;
  StageMessages messages_;
  std::vector<comm::Send> sends_;  ///< of one operation; kept to reuse memory, like `receives_`
  std::vector<comm::Receive> receives_;
  /// By plan, pass and stage. Tasks hold for the step, row addresses for the last layer that ran.
  std::vector<std::array<std::vector<kernels::TaskList<Real>>, 2>> tasks_;
};

}  // namespace cadenza::exec
