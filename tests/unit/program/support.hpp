// SPDX-License-Identifier: Apache-2.0
// Plans and programs to test with.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cadenza/base/error.hpp"
#include "cadenza/plan/plan.hpp"
#include "cadenza/program/step_plan.hpp"
#include "unit/plan/cases.hpp"
#include "unit/tiny_model.hpp"

namespace cadenza::program::test {

using plan::Tensor;

inline plan::Move move(Rank from, Rank to, Tensor what) {
  plan::Move made;
  made.from = from;
  made.to = to;
  made.what = what;
  made.tokens = {0, 1};
  return made;
}

inline plan::PlacedTask task_on(Rank server) {
  plan::PlacedTask placed;
  placed.server = server;
  return placed;
}

/// Two trainers in place; both have a task of their own in stage 0, and rank 1 does one of rank 0's
/// in stage 1, whose results return in stage 2.
inline TickPlans one_move() {
  TickPlans plans;
  plans.forward.workload.ranks = 2;
  plans.forward.workload.lengths = {1};
  plans.forward.workload.servers = {0, 1};
  plans.forward.workload.homes = {{0, 0, {0, 1}}};
  plans.forward.stages = {
      {{}, {task_on(0), task_on(1)}},
      {{move(0, 1, Tensor::q), move(0, 1, Tensor::k), move(0, 1, Tensor::v)}, {task_on(1)}},
      {{move(1, 0, Tensor::o), move(1, 0, Tensor::lse)}, {}}};
  plans.backward = plans.forward;
  plans.backward.stages[1].moves = {move(0, 1, Tensor::q),   move(0, 1, Tensor::dout),
                                    move(0, 1, Tensor::lse), move(0, 1, Tensor::delta),
                                    move(0, 1, Tensor::k),   move(0, 1, Tensor::v)};
  plans.backward.stages[2].moves = {move(1, 0, Tensor::dq), move(1, 0, Tensor::dk),
                                    move(1, 0, Tensor::dv)};
  add_traffic(plans);
  return plans;
}

/// One trainer (rank 0) whose only task runs on a dedicated server (rank 1).
inline TickPlans one_server() {
  TickPlans plans = one_move();
  for (plan::Plan* plan : {&plans.forward, &plans.backward}) {
    plan->workload.servers = {1};
    plan->stages.erase(plan->stages.begin());
  }
  add_traffic(plans);
  return plans;
}

/// Data ranks and dedicated servers alone.
inline config::Experiment experiment_of(int trainers, int servers, int layers, int ticks) {
  config::Experiment e;
  e.model.layers = layers;
  e.model.d_model = 8;
  e.model.heads = 1;
  e.model.kv_heads = 1;
  e.batch.microbatch = 8;
  e.batch.tokens = 8 * trainers * ticks;
  e.parallel.data = trainers;
  e.attention.servers = servers;
  return e;
}

inline StepShape outline_of(int trainers, int servers, int layers, int ticks) {
  return StepShape(experiment_of(trainers, servers, layers, ticks));
}

inline std::vector<Program> make_programs(const StepShape& step_shape,
                                          const std::vector<TickPlans>& tick_plans) {
  std::vector<Program> programs;
  for (Rank rank = 0; rank < step_shape.layout.ranks(); ++rank) {
    programs.push_back(make_program(step_shape, rank, tick_plans));
  }
  return programs;
}

/// A corpus of lengths alone: plans never read tokens.
class Lengths : public data::Corpus {
 public:
  explicit Lengths(std::uint64_t seed) {
    plan::test::Draw draw(seed);
    for (int i = 0; i < 60; ++i) lengths_.push_back(draw.between(1, i % 7 == 0 ? 900 : 90));
  }
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  void read(std::int64_t, Range, std::span<data::Token>) const override {
    fail(ExitCode::data, "plans read no tokens");
  }

 private:
  std::vector<std::int64_t> lengths_;
};

/// An experiment of any layout that config would take.
inline config::Experiment random_experiment(plan::test::Draw& draw) {
  using config::PlacementKind;
  config::Experiment e;
  e.model = tiny_model();
  e.parallel.data = draw.between(1, 3);
  e.parallel.tensor = draw.between(1, 2);
  e.parallel.context = draw.between(1, 4);
  e.parallel.pipeline = draw.between(1, 3);
  const auto placement = draw.of(std::vector<PlacementKind>{
      PlacementKind::cad, PlacementKind::cad, PlacementKind::all_gather, PlacementKind::ring,
      PlacementKind::zigzag, PlacementKind::striped, PlacementKind::block_striped,
      PlacementKind::double_ring, PlacementKind::dynamic});
  e.attention.placement = placement;
  e.attention.inner_ring = e.parallel.context % 2 == 0 ? draw.between(1, 2) : 1;
  e.attention.block = 16;
  e.attention.tolerance = 0.05;
  const bool cad = placement == PlacementKind::cad;
  if (cad && draw.between(0, 2) == 0) e.attention.servers = e.parallel.tensor * draw.between(1, 2);
  e.attention.mixed = e.attention.servers > 0 && draw.between(0, 1) == 0;
  if (!cad && e.parallel.pipeline > 1) e.parallel.chunks = draw.between(1, 2);
  const bool stripes =
      placement == PlacementKind::striped || placement == PlacementKind::block_striped;
  if (!stripes && draw.between(0, 1) == 0) e.attention.overlap = config::Overlap::ping_pong;
  e.run.recompute = draw.any<config::Recompute>();
  e.parallel.shard = draw.any<config::Shard>();
  const std::int64_t parts = e.parallel.pipeline * e.parallel.chunks;
  e.model.layers = parts * draw.between(1, 2);
  if (!cad && parts > 1) e.model.layers += draw.between(0, 1);
  e.batch.microbatch = 512;
  e.batch.tokens = 512 * e.parallel.data * e.parallel.pipeline * draw.between(1, 3);
  e.data.max_document = 512;
  e.data.shuffle = true;
  return e;
}

/// Real plans and programs of all ranks of a random experiment.
struct RandomStep {
  explicit RandomStep(std::uint64_t seed, bool evaluates = false) {
    plan::test::Draw draw(seed);
    experiment = random_experiment(draw);
    experiment.run.evaluates = evaluates;
    const data::Packer packer(Lengths(seed), experiment);
    tick_plans = plan_ticks(experiment, packer.batch(0));
    step_shape.emplace(experiment);
    programs = make_programs(*step_shape, tick_plans);
  }
  config::Experiment experiment;
  std::optional<StepShape> step_shape;
  std::vector<TickPlans> tick_plans;
  std::vector<Program> programs;
};

/// The same to all who ask: to plan it takes longer than what most tests do with it.
inline const RandomStep& random_step(std::uint64_t seed, bool evaluates = false) {
  static std::map<std::pair<std::uint64_t, bool>, RandomStep> made;
  return made.try_emplace({seed, evaluates}, seed, evaluates).first->second;
}

inline std::vector<std::string> lines(const Program& program) {
  std::vector<std::string> text;
  for (const Instruction& instruction : program.instructions)
    text.push_back(to_string(instruction));
  return text;
}

}  // namespace cadenza::program::test
