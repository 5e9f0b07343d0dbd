// SPDX-License-Identifier: Apache-2.0
// The program of one rank for one step: its operations in order, derived from plans and layout. It
// is data, so that it can be printed, counted and checked for deadlock exactly as it is executed.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cadenza/plan/plan.hpp"
#include "cadenza/program/layout.hpp"
#include "cadenza/program/operation.hpp"
#include "cadenza/program/schedule.hpp"
#include "cadenza/program/traffic.hpp"

namespace cadenza::program {

/// An operation of a program and the rows it is for. -1 where a field does not apply.
struct Instruction {
  Operation operation = Operation::embed;
  Pass pass = Pass::forward;  ///< whose plan and formulas it follows
  bool recompute = false;     ///< `pass` is forward, and it runs in the backward pass
  int tick = -1;              ///< tick of the schedule
  int plan = -1;              ///< index into the step's plans: PlanIndex
  int microbatch = -1;        ///< microbatch of this rank's data coordinate
  int buffer = -1;            ///< activation buffer of the microbatch
  int chunk = -1;             ///< group of layers
  int layer = -1;             ///< layer of this rank, over all chunks
  int stage = -1;             ///< stage of the plan
  int half = 0;               ///< half of the microbatch in ping-pong
  Rank peer = -1;             ///< world rank at the other end of a residual stream
  int slot = -1;              ///< memory of a layer's activations: StepShape::slots
  friend bool operator==(const Instruction&, const Instruction&) = default;
};

/// Whether an instruction computes gradients.
inline bool is_gradient(const Instruction& instruction) {
  return instruction.pass == Pass::backward;
}

/// Whether an operation writes rows at home that attention's messages of `half` send, so that those
/// under way have to be gone: Q, K and V in forward passes, the gradient of O in backward ones. The
/// second half also sends keys of the first. In the next layer they lie elsewhere, but a microbatch
/// may begin in the memory of the one before.
inline bool writes_sent_rows(const Instruction& instruction, int half) {
  if (instruction.operation == Operation::load) return half == 1;
  if (instruction.half != half) return false;
  return instruction.operation ==
         (is_gradient(instruction) ? Operation::attention_outputs : Operation::attention_inputs);
}

/// The phase of a pass in traces.
Phase phase_of(Pass pass);
Phase phase_of(const Instruction& instruction);
/// The place of an operation's events in traces.
/// @param halves  StepShape::halves
EventContext context_of(const Instruction& instruction, int halves);

/// The plans of a tick or, in ping-pong, of one half of it, for all layers or for those of a class.
struct TickPlans {
  plan::Plan forward;
  plan::Plan backward;
  /// By context group of the pool: index of its first document in the plans.
  std::vector<int> first_document;
  int half = 0;
  Traffic forward_traffic;
  Traffic backward_traffic;
  Traffic forward_index;  ///< has no rounds where all documents are dense
  Traffic backward_index;
  const plan::Plan& of(Pass pass) const { return pass == Pass::forward ? forward : backward; }
  const Traffic& traffic(Pass pass) const {
    return pass == Pass::forward ? forward_traffic : backward_traffic;
  }
  const Traffic& index_traffic(Pass pass) const {
    return pass == Pass::forward ? forward_index : backward_index;
  }
};

/// Fills the traffic of both plans and of their index rounds.
void add_traffic(TickPlans& plans);

/// The core attention of one layer in one pass of a tick.
struct LayerPass {
  std::int32_t tick = 0;
  std::int32_t layer = 0;  ///< layer of a rank, over all chunks
  Phase phase = Phase::forward;
  friend auto operator<=>(const LayerPass&, const LayerPass&) = default;
  friend bool operator==(const LayerPass&, const LayerPass&) = default;  // nvcc derives none
};

/// The shape that all ranks' programs of an experiment share.
struct StepShape {
  explicit StepShape(const config::Experiment& experiment);

  Layout layout;
  PipelineShape pipeline;
  std::vector<Range> parts;  ///< layers of the model: stage_layers()
  int most_layers = 1;       ///< of the stage with most
  int halves = 1;            ///< 2: ping-pong
  config::Recompute recompute = config::Recompute::none;
  bool offloads = false;           ///< what layers keep waits in host memory
  bool shards_optimizer = false;   ///< with shards_parameters, too
  bool shards_parameters = false;  ///< a rank has a layer's parameters only while it computes it
  bool gathers_ahead = false;      ///< updated parameters, beside the first forward pass
  bool sums_late = false;          ///< gradients, after the backward passes
  bool evaluates = false;          ///< forward passes only
  /// With `offloads`: layers of a rank whose activations have memory at a time. Layer l of a chunk
  /// has place l modulo slots.
  int slots(int stage) const;
  /// Last layers of a chunk that stay: all that have a place, where the backward pass of a
  /// microbatch comes right after its forward pass.
  int staying_layers(int stage) const;
  /// Whether updated parameters are gathered at the end of the step.
  bool gathers_after() const { return shards_optimizer && !shards_parameters && !gathers_ahead; }
  /// The layers of the model in a chunk of a stage.
  const Range& chunk_layers(int stage, int chunk) const {
    return parts[static_cast<std::size_t>(chunk * pipeline.stages + stage)];
  }
  /// Layers of all chunks of a pipeline stage.
  int layers_of_stage(int stage) const;
  /// Layers of a rank's stage; of a dedicated server, whose stages are alike, those of any.
  int layers_of_rank(Rank rank) const;
  /// The layer of the model that a stage's layer is.
  /// @param layer  layer of the pipeline stage, over all chunks: Instruction::layer
  int model_layer(int stage, int layer) const;
  /// The ticks of a pool, in order. Where stages are not pooled there is one forward tick of one
  /// stage per microbatch.
  std::vector<Tick> ticks() const;
  /// Number of layer passes of a step. In each, the ranks that share the attention of a layer wait
  /// for each other; pipeline stages with pools of their own have passes of their own.
  std::size_t layer_passes() const;
  /// The number of the layer pass in which a rank computes `pass`.
  std::size_t number_of(const LayerPass& pass, Rank rank) const;
  /// Number of servers that share the attention of a layer pass.
  int servers_of_pass() const;
};

/// Order of the plans of a step: (tick x classes + class) x halves + half. Each class of layers has
/// plans of its own (plan::Workload::layers); the homes of all classes are the same.
class PlanIndex {
 public:
  PlanIndex(const StepShape& step_shape, std::span<const TickPlans> plans);
  int classes() const { return classes_; }
  int tick(int plan) const { return plan / (classes_ * halves_); }
  int half(int plan) const { return plan % halves_; }
  int layer_class(int plan) const { return plan / halves_ % classes_; }
  /// The index of a plan.
  /// @param layer  layer of the model; -1: for facts that all classes share
  int plan(int tick, int half, int layer) const;

 private:
  int halves_ = 1;
  int classes_ = 1;
  std::vector<int> class_of_;  ///< by layer of the model; empty if there is one class
};

struct Program {
  Rank rank = 0;
  int buffers = 1;  ///< activation buffers: microbatches x chunks in flight
  std::vector<Instruction> instructions;
};

/// Makes the program of a rank.
/// @param tick_plans  plans of the rank's pool, in the order of PlanIndex
Program make_program(const StepShape& step_shape, Rank rank, std::span<const TickPlans> tick_plans);

/// Program::buffers of a stage's trainers; independent of plans.
int buffers_of_stage(const StepShape& step_shape, int stage);

/// Numbers of residual streams for which a trainer of a stage has memory; independent of plans.
struct StreamBuffers {
  /// By Pass: sends under way. Where all are, the executor waits for the one that left first.
  std::array<int, 2> sends{};
  int receives = 0;  ///< receives that are posted and not yet taken
  int total() const { return sends[0] + sends[1] + receives; }
};
StreamBuffers stream_buffers_of_stage(const StepShape& step_shape, int stage);

/// An instruction as text: "tick 0 layer 3 forward attend stage 1".
std::string to_string(const Instruction& instruction);

}  // namespace cadenza::program
