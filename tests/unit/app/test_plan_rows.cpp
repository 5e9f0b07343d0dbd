// SPDX-License-Identifier: Apache-2.0
// Rows of /plan and /plan_summary against sums over the plans' own tasks and moves.
#include "app/train/plan_rows.hpp"

#include <gmock/gmock.h>

#include <map>
#include <set>
#include <tuple>

#include "cadenza/program/operation_work.hpp"
#include "cadenza/program/step_plan.hpp"
#include "unit/tiny_model.hpp"

namespace cadenza::app::test_plan_rows {
namespace {

using program::Pass;

/// Heavy-tailed documents on two data-parallel ranks.
config::Experiment small() {
  config::Experiment e;
  e.model = tiny_model();
  e.data.source = config::Source::synthetic;
  e.data.documents = 200;
  e.data.max_document = 512;
  e.data.lengths.median = 60;
  e.batch.tokens = 4096;
  e.batch.microbatch = 512;
  e.parallel.data = 2;
  e.attention.placement = config::PlacementKind::cad;
  e.attention.block = 16;
  return e;
}

struct Step {
  explicit Step(const config::Experiment& experiment)
      : step_shape(experiment), pool(program::planning_pool(experiment, {}, step_shape.layout)) {
    const auto corpus = data::open_corpus(experiment.data, experiment.model.vocab, experiment.seed);
    tick_plans = program::plan_ticks(experiment, data::Packer(*corpus, experiment).batch(3));
  }
  std::vector<trace::PlannedStage> stages(Rank rank) const {
    return planned_stages(3, step_shape, tick_plans, rank, pool);
  }
  program::StepShape step_shape;
  cost::Pool pool;
  std::vector<program::TickPlans> tick_plans;
};

void expect_stage(const trace::PlannedStage& row, const plan::Stage& stage, Rank server) {
  double cost = 0;
  int tasks = 0;
  for (const plan::PlacedTask& task : stage.tasks) {
    if (task.server == server) cost += task.cost, ++tasks;
  }
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::set<std::pair<Rank, bool>> senders;
  const bool forward = row.phase == static_cast<std::uint32_t>(Phase::forward);
  for (const plan::Move& move : stage.moves) {
    if (move.from == server) out += move.bytes;
    if (move.to != server) continue;
    in += move.bytes;
    senders.emplace(move.from,
                    plan::is_result(move.what, forward ? Pass::forward : Pass::backward));
  }
  EXPECT_EQ(row.tasks, tasks);
  EXPECT_DOUBLE_EQ(row.cost, cost);
  EXPECT_EQ(row.bytes_in, in);
  EXPECT_EQ(row.bytes_out, out);
  EXPECT_EQ(row.messages_in, static_cast<int>(senders.size()));
  EXPECT_NEAR(row.attend_seconds, cost / 5e10, 1e-12 * row.attend_seconds);
  EXPECT_NEAR(row.receive_seconds, static_cast<double>(in) / 5e9, 1e-12 * row.receive_seconds);
}

TEST(PlanRows, SumUpEveryStageOfEveryPlan) {
  for (const auto overlap : {config::Overlap::none, config::Overlap::ping_pong}) {
    config::Experiment e = small();
    e.attention.overlap = overlap;
    const Step step(e);
    const int parts = step.step_shape.halves;
    for (Rank rank = 0; rank < 2; ++rank) {
      std::set<std::tuple<int, int, int, int>> seen;
      for (const trace::PlannedStage& row : step.stages(rank)) {
        EXPECT_EQ(row.step, 3u);
        EXPECT_EQ(row.server, rank);
        EXPECT_EQ(row.half >= 0, parts == 2);
        const auto plan = static_cast<std::size_t>(row.tick * parts + std::max(row.half, 0));
        const bool forward = row.phase == static_cast<std::uint32_t>(Phase::forward);
        const plan::Plan& of =
            step.tick_plans.at(plan).of(forward ? Pass::forward : Pass::backward);
        expect_stage(row, of.stages.at(static_cast<std::size_t>(row.stage)), rank);
        seen.emplace(row.tick, row.half, row.phase, row.stage);
      }
      std::size_t expected = 0;
      for (const auto& tick : step.tick_plans) {
        expected += tick.forward.stages.size() + tick.backward.stages.size();
      }
      EXPECT_EQ(seen.size(), expected);
      EXPECT_EQ(step.stages(rank).size(), expected);
    }
  }
}

TEST(PlanRows, AreOfServersAlone) {
  config::Experiment e = small();
  e.attention.servers = 2;
  const Step step(e);
  EXPECT_THAT(step.stages(0), ::testing::IsEmpty());
  EXPECT_THAT(step.stages(2), ::testing::Not(::testing::IsEmpty()));
}

TEST(PlanRows, AreOfThePhaseThatATickIsIn) {
  config::Experiment e = small();
  e.parallel.data = 1;
  e.parallel.pipeline = 2;
  e.attention.servers = 1;
  e.attention.mixed = true;
  const Step step(e);
  ASSERT_TRUE(step.step_shape.layout.pools_stages());
  const auto ticks = step.step_shape.ticks();
  for (const trace::PlannedStage& row : step.stages(0)) {
    const bool forward = row.phase == static_cast<std::uint32_t>(Phase::forward);
    EXPECT_EQ(ticks.at(static_cast<std::size_t>(row.tick)).phase == Pass::forward, forward);
  }
}

TEST(PlanRows, TasksKnowTheirTickAndHalf) {
  config::Experiment e = small();
  e.attention.overlap = config::Overlap::ping_pong;
  const Step step(e);
  const auto tasks = planned_tasks(3, step.step_shape, step.tick_plans);
  std::map<std::pair<int, int>, double> found;
  for (const auto& of_server : tasks) {
    for (const trace::PlannedTask& task : of_server) {
      found[{task.tick, task.half}] += task.cost;
    }
  }
  for (std::size_t i = 0; i < step.tick_plans.size(); ++i) {
    double cost = 0;
    for (const double of_rank : step.tick_plans[i].forward.cost_per_rank) cost += of_rank;
    const std::pair key(static_cast<int>(i) / 2, static_cast<int>(i) % 2);
    EXPECT_NEAR(found[key], cost, 1e-9 * cost);
  }
}

}  // namespace
}  // namespace cadenza::app::test_plan_rows
