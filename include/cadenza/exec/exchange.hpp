// SPDX-License-Identifier: Apache-2.0
// Core attention of one layer through a plan: rows travel to servers, tasks run there, results
// travel back and merge. The executor calls the operations in the order of the rank's program. In
// ping-pong each half of a microbatch has an exchange of its own.
//
// All rows travel as they lie in their buffers: Q, K, V, dO as Real, and O, LSE, delta, dQ, dK, dV
// as Accumulator<Real>. Nothing is rounded on its way, so that no number of ranks adds to the error
// of a sum.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/exec/binding.hpp"
#include "cadenza/exec/index_exchange.hpp"
#include "cadenza/exec/stage_messages.hpp"
#include "cadenza/exec/tracer.hpp"
#include "cadenza/exec/workspace.hpp"
#include "cadenza/kernels/attention.hpp"
#include "cadenza/model/llama.hpp"

namespace cadenza::exec {

struct StridedRows;

/// The communicators of a pool's messages: one for inputs, one for results, and others for each
/// half, so that ranks may post them in different orders without deadlock.
struct AttentionMessages {
  DeviceCommunicator& inputs;
  DeviceCommunicator& results;
};

/// What the attention operations that follow belong to.
template <typename Real>
struct AttentionContext {
  int tick = 0;   ///< of this exchange: index into what was bound
  int layer = 0;  ///< of the trace
  program::Pass pass = program::Pass::forward;
  bool recompute = false;              ///< the forward pass, repeated in the backward pass
  int copy = 0;                        ///< where a server that keeps its inputs keeps this layer's
  model::AttentionBuffers<Real> home;  ///< null rows on dedicated servers
  /// By head of this rank, what its patterns may keep; empty: all as the plan says.
  std::span<const SparseRule> rules = {};
  bool sampled = false;  ///< the layer whose recall is asked for in this step
};

template <typename Real>
class AttentionExchange {
 public:
  using Sum = Accumulator<Real>;

  /// @param pool  of the ranks that plans speak of
  /// @param members  their world ranks, which traces name
  /// @param half  of the microbatch, 0 without ping-pong
  AttentionExchange(const AttentionMessages& pool, std::vector<Rank> members,
                    const kernels::AttentionShape& shape, const kernels::RotaryTable<Sum>& rotary,
                    int half, Tracer& tracer, MemoryLedger& ledger);

  /// Takes a step's plans, one per tick; grows buffers where one needs more than any before: no
  /// memory is allocated until the next call.
  /// @param copies  layers x activation buffers whose inputs a server keeps, where plans say so
  /// @throws Error(communication) where a plan was made for elements of other sizes
  void bind(const std::vector<const program::TickPlans*>& ticks, int align, int copies);

  /// A new tick, layer or pass first completes what the one before sent.
  void set_context(const AttentionContext<Real>& context);
  /// Completes all messages: before the end of a step.
  void finish();
  /// After the last pass of a step: see IndexExchange. Collective.
  void require_all_computed() { index_.require_all_computed(); }
  IndexExchange<Real>& index() { return index_; }
  const Binding& binding(int tick) const { return bindings_[at(tick)]; }

  /// Runs an attention operation of the place's pass:
  /// - begin_attention (backward): delta of this rank's own rows;
  /// - post, post_results: packs and starts this rank's messages of a stage;
  /// - wait, wait_results: completes them: inputs are placed in the workspace, results are merged
  /// or
  ///   added at home;
  /// - post_index, wait_index, estimate: see IndexExchange;
  /// - attend: this rank's tasks of a stage; messages move on meanwhile.
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
  const Binding& bound() const { return binding(context_.tick); }
  const StageBinding& stage_of(int stage) const;
  std::byte* bytes_of(const MessageSet& messages) const {
    return buffer_.memory() + messages.buffer;
  }
  std::span<std::byte> place_of(const MessageSet& messages, const Message& message) const {
    return buffer_.bytes(messages.buffer + message.offset, message.bytes);
  }
  const model::AttentionBuffers<Real>& buffers_of(bool home) const;
  Real* inputs_of(bool home, plan::Tensor what, std::int64_t head_row) const;
  Sum* sums_of(bool home, plan::Tensor what, std::int64_t head_row) const;
  StridedRows stride_of(const Segment& segment) const;
  void pack(const MessageSet& messages);
  void unpack(const MessageSet& messages);
  void place_input(const Segment& segment, const std::byte* source);
  void merge_output(const MessageSet& messages, const Segment& out);
  void bind_tasks();
  kernels::TaskList<Real>& tasks_of(int stage);

  AttentionMessages over_;
  comm::Communicator& pool_;  ///< for what is in host memory
  kernels::AttentionShape shape_;
  plan::AttentionShape plan_shape_;
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
  std::vector<comm::Send> sends_;  ///< of an operation; kept for their memory, as `receives_` is
  std::vector<comm::Receive> receives_;
  /// By tick, pass and stage; the tasks are those of the step, the rows those of the last layer.
  std::vector<std::array<std::vector<kernels::TaskList<Real>>, 2>> tasks_;
};

}  // namespace cadenza::exec
