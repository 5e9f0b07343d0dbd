// SPDX-License-Identifier: Apache-2.0
// Plans and programs to test with.
#pragma once

#include <algorithm>
#include <vector>

#include "cadenza/plan/placement.hpp"
#include "cadenza/plan/plan.hpp"
#include "cadenza/program/program.hpp"
#include "unit/plan/cases.hpp"

namespace cadenza::program::test {

using plan::Tensor;

inline plan::Move move(Rank from, Rank to, Tensor what) {
  plan::Move made;
  made.from = from;
  made.to = to;
  made.what = what;
  return made;
}

inline plan::PlacedTask task_on(Rank server) {
  plan::PlacedTask placed;
  placed.server = server;
  return placed;
}

/// Two trainers in place; both have a task of their own in stage 0, and rank 1 does one of rank 0's
/// in stage 1, whose results return in stage 2. Programs look at ranks and tensors alone.
inline TickPlans one_move() {
  TickPlans plans;
  plans.forward.workload.ranks = 2;
  plans.forward.workload.servers = {0, 1};
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
  return plans;
}

/// One trainer (rank 0) whose only task runs on a dedicated server (rank 1).
inline TickPlans one_server() {
  TickPlans plans = one_move();
  for (plan::Plan* plan : {&plans.forward, &plans.backward}) {
    plan->workload.servers = {1};
    plan->stages.erase(plan->stages.begin());
  }
  return plans;
}

inline std::vector<Program> make_programs(int ranks, int trainers, int layers,
                                          const std::vector<TickPlans>& ticks) {
  std::vector<Program> programs;
  for (Rank rank = 0; rank < ranks; ++rank) {
    programs.push_back(make_program(rank, trainers, layers, ticks));
  }
  return programs;
}

/// Real plans: some ticks over one layout of ranks, colocated or CAD.
struct RandomStep {
  int ranks = 1;
  int trainers = 1;
  int layers = 1;
  std::vector<TickPlans> ticks;
  std::vector<Program> programs;
};

inline RandomStep random_step(std::uint64_t seed) {
  plan::test::Draw draw(seed);
  RandomStep step;
  step.ranks = static_cast<int>(draw.between(1, 6));
  const int dedicated = step.ranks > 1 ? static_cast<int>(draw.between(0, step.ranks - 1)) : 0;
  step.trainers = step.ranks - dedicated;
  step.layers = static_cast<int>(draw.between(1, 3));
  const bool balanced = draw.between(0, 3) > 0;
  for (std::int64_t tick = draw.between(1, 3); tick > 0; --tick) {
    std::vector<std::vector<std::int64_t>> documents(static_cast<std::size_t>(step.trainers));
    for (auto& list : documents) {
      for (std::int64_t n = draw.between(0, 3); n > 0; --n) list.push_back(draw.between(1, 400));
    }
    const plan::Workload workload = plan::test::workload(documents, dedicated);
    const plan::Plan forward = balanced ? plan::cad(workload, 16, 0.05) : plan::colocated(workload);
    step.ticks.push_back({forward, plan::mirror(forward)});
  }
  step.programs = make_programs(step.ranks, step.trainers, step.layers, step.ticks);
  return step;
}

inline std::vector<std::string> lines(const Program& program) {
  std::vector<std::string> text;
  for (const Step& step : program.steps) text.push_back(to_string(step));
  return text;
}

}  // namespace cadenza::program::test
