// SPDX-License-Identifier: Apache-2.0
// Core attention of one layer through a plan: rows travel to servers, tasks run there, results
// travel back and merge. The executor calls begin, post, wait and attend in the order of the rank's
// program.
//
// In messages Q, K, V, dO, O, dQ, dK, dV are Real: sums are rounded when they leave and widened
// before they merge or add up. LSE and delta travel as they are, in Accumulator<Real>.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/exec/binding.hpp"
#include "cadenza/exec/tracer.hpp"
#include "cadenza/exec/workspace.hpp"
#include "cadenza/kernels/attention.hpp"
#include "cadenza/model/llama.hpp"

namespace cadenza::exec {

template <typename Real>
class AttentionExchange {
 public:
  using Sum = Accumulator<Real>;

  /// @param world  of all ranks of the plans
  AttentionExchange(comm::Communicator& world, const kernels::AttentionShape& shape,
                    const kernels::RotaryTable<Sum>& rotary, Tracer& tracer, MemoryLedger& ledger);

  /// Takes the plans of the tick that follows; grows buffers where it needs more than any tick
  /// before.
  /// @throws Error(communication) where they were made for elements of other sizes
  void bind(const program::TickPlans& plans, int tick);

  /// Sets the layer whose attention follows. `home` has null rows on dedicated servers.
  void set_layer(int layer, const model::AttentionSlot<Real>& home);

  /// Forward: empty outputs (O = 0, LSE = -inf). Backward: delta at home, zero gradients.
  void begin(program::Pass pass);
  /// Packs and starts this rank's messages of a stage.
  void post(program::Pass pass, int stage);
  /// Completes them: inputs are placed in the workspace, results are merged at home.
  void wait(program::Pass pass, int stage);
  /// Runs this rank's tasks of a stage.
  void attend(program::Pass pass, int stage);

 private:
  struct Buffer {
    Array<std::byte> device;
    HostArray<std::byte> host;  ///< what messages are sent from and received into
    std::int64_t posted_ns = 0;
  };
  struct Names {
    std::uint16_t pack, unpack, wait, attend, begin, inputs, results;
  };

  static std::span<std::byte> bytes_of(const Buffer& buffer, const Message& message);
  void grow_arriving();
  void grow(Buffer& buffer, std::int64_t bytes);
  Real* inputs_of(const model::AttentionSlot<Real>& slot, plan::Tensor what,
                  std::int64_t row) const;
  Sum* sums_of(const model::AttentionSlot<Real>& slot, plan::Tensor what, std::int64_t row) const;
  void pack(const Traffic& traffic, const Buffer& buffer);
  void unpack(const Traffic& traffic, const Buffer& buffer);
  void merge_output(const Traffic& traffic, const Segment& out, const Buffer& buffer);
  void list_tasks(const StageBinding& stage);
  void record_messages(const Traffic& traffic, program::Pass pass, int stage, bool sends,
                       std::int64_t begin);
  int tag(program::Pass pass, int stage) const;

  comm::Communicator& world_;
  kernels::AttentionShape shape_;
  plan::AttentionShape plan_shape_;
  kernels::RotaryTable<Sum> rotary_;
  Tracer& tracer_;
  MemoryLedger& ledger_;
  Names names_;
  Binding binding_;
  int tick_ = 0;
  int layer_ = 0;
  model::AttentionSlot<Real> home_;
  Workspace<Real> workspace_;
  std::vector<Buffer> send_;     ///< by stage
  std::vector<Buffer> receive_;  ///< by stage
  Array<Sum> arriving_;          ///< O, then LSE, of a segment, widened; empty if Real is Sum
  kernels::TaskList<Real> list_;
};

}  // namespace cadenza::exec
