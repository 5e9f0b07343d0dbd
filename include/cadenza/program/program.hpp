// SPDX-License-Identifier: Apache-2.0
// The program of one rank for one step: its operations in order, derived from plans and layout.
// Data only: it is printed, counted and checked for deadlock as it is executed.
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

/// One operation. -1 where a field does not apply.
struct Step {
  Operation operation = Operation::embed;
  Pass pass = Pass::forward;
  bool recompute = false;  ///< a forward operation in the backward pass
  int tick = -1;           ///< of the schedule
  int plan = -1;           ///< index into the step's plans: PlanIndex
  int microbatch = -1;     ///< of this rank's data coordinate
  int buffer = -1;         ///< the activation buffer of the microbatch
  int chunk = -1;          ///< group of layers
  int layer = -1;          ///< of this rank, over all chunks
  int stage = -1;          ///< of the plan
  int half = 0;            ///< half of the microbatch in ping-pong
  Rank peer = -1;          ///< world rank that a residual stream comes from or goes to
  friend bool operator==(const Step&, const Step&) = default;
};

/// Whether a step computes gradients, not values: the backward pass without what it repeats.
inline bool is_gradient(const Step& step) {
  return step.pass == Pass::backward && !step.recompute;
}

/// As traces call it.
Phase phase_of(Pass pass);
Phase phase_of(const Step& step);
/// Where in traces the events of an operation belong.
/// @param parts  StepShape::parts
EventContext context_of(const Step& step, int halves);

/// The plans of a tick (in ping-pong of one half of it), for all layers or for those of a class.
struct TickPlans {
  plan::Plan forward;
  plan::Plan backward;
  /// By context group of the pool: number of its first document in the plans.
  std::vector<int> first_document;
  int half = 0;
  Traffic forward_traffic;
  Traffic backward_traffic;
  Traffic forward_index;  ///< without rounds where all documents are dense
  Traffic backward_index;
  const plan::Plan& of(Pass pass) const { return pass == Pass::forward ? forward : backward; }
  const Traffic& traffic(Pass pass) const {
    return pass == Pass::forward ? forward_traffic : backward_traffic;
  }
  const Traffic& index_traffic(Pass pass) const {
    return pass == Pass::forward ? forward_index : backward_index;
  }
};

/// Fills the traffic of both plans.
void add_traffic(TickPlans& plans);

/// The core attention of one layer in one pass of a tick.
struct LayerPass {
  std::int32_t tick = 0;
  std::int32_t layer = 0;  ///< of a rank, over all chunks
  Phase phase = Phase::forward;
  friend auto operator<=>(const LayerPass&, const LayerPass&) = default;
  friend bool operator==(const LayerPass&, const LayerPass&) = default;  // nvcc makes none
};

/// What all ranks' programs of an experiment have in common.
struct StepShape {
  explicit StepShape(const config::Experiment& experiment);

  Layout layout;
  PipelineShape pipeline;
  int layers = 1;  ///< of a chunk
  int halves = 1;  ///< 2: ping-pong
  config::Recompute recompute = config::Recompute::none;
  bool shards_optimizer = false;
  /// Of the model.
  /// @param layer  of a pipeline stage, over all chunks: Step::layer
  int model_layer(int stage, int layer) const;
  /// The ticks of a pool, in order. Where stages are not pooled: one per microbatch, all forward,
  /// of one stage.
  std::vector<Tick> ticks() const;
  /// Ranks that share the attention of a layer wait for one another in each pass of it. How many
  /// such passes a step has, and the number of the one in which a rank computes `pass`: pipeline
  /// stages with pools of their own have passes of their own.
  std::size_t layer_passes() const;
  std::size_t number_of(const LayerPass& pass, Rank rank) const;
  /// Ranks that share the attention of a layer pass.
  int servers_of_pass() const;
};

/// Where the plans of a step stand: (tick x classes + class) x parts + part. The layers of a class
/// have plans of their own (plan::Workload::layers); the homes of all classes are the same.
class PlanIndex {
 public:
  PlanIndex(const StepShape& step_shape, std::span<const TickPlans> plans);
  int classes() const { return classes_; }
  int tick(int plan) const { return plan / (classes_ * halves_); }
  int half(int plan) const { return plan % halves_; }
  int layer_class(int plan) const { return plan / halves_ % classes_; }
  /// @param layer  of the model; -1: what is the same for all
  int plan(int tick, int half, int layer) const;

 private:
  int halves_ = 1;
  int classes_ = 1;
  std::vector<int> class_of_;  ///< by layer of the model; empty: there is one class
};

struct Program {
  Rank rank = 0;
  int buffers = 1;  ///< for activations: microbatches x chunks in flight
  std::vector<Step> steps;
};

/// @param ticks  of the rank's pool: PlanIndex
Program make_program(const StepShape& step_shape, Rank rank, std::span<const TickPlans> ticks);

/// Program::buffers of a stage's trainers, which no plan changes.
int buffers_of_stage(const StepShape& step_shape, int stage);

/// Residual streams that a trainer of a stage has memory for, which no plan changes.
struct StreamBuffers {
  /// On their way, by Pass. Where both are, the one that left first is waited for.
  std::array<int, 2> sends{};
  int receives = 0;  ///< posted, and not taken yet
  int total() const { return sends[0] + sends[1] + receives; }
};
StreamBuffers stream_buffers_of_stage(const StepShape& step_shape, int stage);

/// "tick 0 layer 3 forward attend stage 1".
std::string to_string(const Step& step);

}  // namespace cadenza::program
