// SPDX-License-Identifier: Apache-2.0
// A step's plans and programs are a pure function of experiment, corpus and step, from any thread.
#include "cadenza/program/step_plan.hpp"

#include <gmock/gmock.h>

#include <set>
#include <thread>

#include "cadenza/base/error.hpp"
#include "cadenza/plan/validate.hpp"
#include "unit/program/support.hpp"
#include "unit/tiny_model.hpp"

namespace cadenza::program::test_step_plan {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Case {
  explicit Case(int servers = 0) {
    experiment.model = tiny_model();
    experiment.parallel.data = 3;
    experiment.batch.tokens = 3 * 2 * 512;
    experiment.batch.microbatch = 512;
    experiment.data.shuffle = true;
    experiment.attention.servers = servers;
    experiment.attention.block = 16;
    experiment.attention.tolerance = 0.05;
  }
  data::Packer packer() const { return {test::Lengths(1), experiment}; }
  config::Experiment experiment;
};

void expect_equal(const StepPlan& a, const StepPlan& b) {
  EXPECT_EQ(a.hash, b.hash);
  EXPECT_EQ(a.program.rank, b.program.rank);
  EXPECT_EQ(a.program.instructions, b.program.instructions);
  EXPECT_EQ(a.batch.lengths(), b.batch.lengths());
  ASSERT_EQ(a.tick_plans.size(), b.tick_plans.size());
  for (std::size_t tick = 0; tick < a.tick_plans.size(); ++tick) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      EXPECT_EQ(plan::hash(a.tick_plans[tick].of(pass)), plan::hash(b.tick_plans[tick].of(pass)));
    }
  }
}

TEST(StepPlan, EqualInputsGiveEqualPlans) {
  const Case one;
  for (const std::int64_t step : {0, 1, 7}) {
    expect_equal(plan_step(one.experiment, one.packer(), 1, step),
                 plan_step(one.experiment, one.packer(), 1, step));
  }
}

TEST(PatternChoice, IsMadeEveryFewSteps) {
  config::SparseAttention sparse;
  data::Batch batch;
  batch.microbatches = {{{{0, {0, 300}}, {1, {0, 20}}}}, {{{2, {0, 300}}}}};
  const auto choices = [&](std::int64_t refresh, std::int64_t first) {
    sparse.refresh = refresh;
    PatternChoice choice(sparse);
    std::vector<std::int64_t> chosen;
    for (std::int64_t step = first; step < 12; ++step) {
      if (choice.chooses(step)) {
        EXPECT_THAT(choice.reused(step), IsEmpty());
        choice.chose(batch);
        chosen.push_back(step);
      } else {
        const bool reuses = refresh != 1 && step >= sparse.dense_steps;
        EXPECT_EQ(choice.reused(step),
                  reuses ? std::vector<std::int64_t>({20, 300}) : std::vector<std::int64_t>());
      }
    }
    return chosen;
  };
  EXPECT_THAT(choices(1, 0), IsEmpty());  // every step chooses, and keeps nothing
  EXPECT_THAT(choices(4, 0), ElementsAre(0, 4, 8));
  EXPECT_THAT(choices(4, 6), ElementsAre(6, 8));
  EXPECT_THAT(choices(0, 5), ElementsAre(5));
  sparse.dense_steps = 3;
  EXPECT_THAT(choices(5, 0), ElementsAre(3, 5, 10));
  const PatternChoice every_five(sparse);
  EXPECT_EQ(every_five.last_choice(2), -1);
  EXPECT_EQ(every_five.last_choice(4), 3);
  EXPECT_EQ(every_five.last_choice(5), 5);
  EXPECT_EQ(every_five.last_choice(14), 10);
  sparse.refresh = 0;
  EXPECT_EQ(PatternChoice(sparse).last_choice(9), 3);
}

TEST(StepPlan, CapacitiesOfAPoolAreThoseOfTheSlowestRanks) {
  Case one(2);
  one.experiment.parallel.tensor = 2;
  one.experiment.attention.mixed = true;
  one.experiment.attention.capacity = {{1.0, 70.0}, {5.0, 150.0}, {6.0, 40.0}};
  const StepPlan made = plan_step(one.experiment, one.packer(), 0, 0);
  const std::vector<std::int64_t> wanted = {70, 100, 100, 40};  // ranks 4 and 5 serve as 100
  EXPECT_EQ(made.tick_plans.front().forward.workload.capacities, wanted);
}

/// Packing finds a rank's replica by itself: as the layout does.
TEST(StepPlan, PackingGivesTheReplicaOfASlowRankLess) {
  Case one;
  config::Parallel& parallel = one.experiment.parallel;
  parallel.data = 3;
  parallel.pipeline = parallel.tensor = parallel.context = 2;
  one.experiment.batch.packing = config::Packing::pooled;
  one.experiment.batch.longest = 4;
  const Layout layout(one.experiment);
  for (Rank rank = 0; rank < layout.ranks(); ++rank) {
    one.experiment.attention.capacity = {{static_cast<double>(rank), 10.0}};
    const data::Batch batch = one.packer().batch(0);
    const auto slow = static_cast<std::size_t>(layout.coordinates(rank).data);
    for (std::size_t i = 0; i < batch.microbatches.size(); ++i) {
      if (i % 3 == slow) continue;
      EXPECT_GT(batch.microbatches[i].tokens(), batch.microbatches[slow].tokens())
          << "rank " << rank << ", microbatch " << i;
    }
  }
}

TEST(StepPlan, RanksAgreeOnTheHashAndDifferInTheirPrograms) {
  const Case one(2);
  const data::Packer packer = one.packer();
  std::set<std::uint64_t> hashes;
  for (Rank rank = 0; rank < 5; ++rank) {
    const StepPlan plan = plan_step(one.experiment, packer, rank, 3);
    hashes.insert(plan.hash);
    EXPECT_EQ(plan.program.rank, rank);
    EXPECT_EQ(plan.program.instructions,
              make_program(StepShape(one.experiment), rank, plan.tick_plans).instructions);
  }
  EXPECT_EQ(hashes.size(), 1U);
}

TEST(StepPlan, StepsHaveDifferentPlans) {
  const Case one;
  const data::Packer packer = one.packer();
  std::set<std::uint64_t> hashes;
  for (std::int64_t step = 0; step < 20; ++step) {
    hashes.insert(plan_step(one.experiment, packer, 0, step).hash);
  }
  EXPECT_EQ(hashes.size(), 20U);
}

TEST(StepPlan, HashSeesThePlacementAndTheServers) {
  Case colocated;
  colocated.experiment.attention.placement = config::PlacementKind::colocated;
  const Case in_place, dedicated(1);
  std::set<std::uint64_t> hashes;
  for (const Case* one : {&std::as_const(colocated), &in_place, &dedicated}) {
    hashes.insert(plan_step(one->experiment, one->packer(), 0, 0).hash);
  }
  EXPECT_EQ(hashes.size(), 3U);
}

TEST(StepPlan, TicksCoverTheBatchWithValidPlans) {
  for (const int servers : {0, 1, 2}) {
    const Case one(servers);
    const data::Packer packer = one.packer();
    for (std::int64_t step = 0; step < 4; ++step) {
      const StepPlan plan = plan_step(one.experiment, packer, 0, step);
      ASSERT_EQ(plan.tick_plans.size(), 2U);
      std::int64_t tokens = 0;
      for (const TickPlans& tick : plan.tick_plans) {
        EXPECT_THAT(plan::violations(tick.forward), IsEmpty());
        EXPECT_THAT(plan::mirror_violations(tick.forward, tick.backward), IsEmpty());
        for (const std::int64_t length : tick.forward.workload.lengths) tokens += length;
      }
      EXPECT_EQ(tokens, one.experiment.batch.tokens);
      EXPECT_EQ(plan.batch.step, step);
    }
  }
}

TEST(StepPlan, PlanTicksMakesTheSamePlans) {
  const Case one;
  const data::Packer packer = one.packer();
  const StepPlan plan = plan_step(one.experiment, packer, 0, 5);
  const std::vector<TickPlans> tick_plans = plan_ticks(one.experiment, packer.batch(5));
  ASSERT_EQ(tick_plans.size(), plan.tick_plans.size());
  for (std::size_t tick = 0; tick < tick_plans.size(); ++tick) {
    EXPECT_EQ(plan::hash(tick_plans[tick].forward), plan::hash(plan.tick_plans[tick].forward));
    EXPECT_EQ(plan::hash(tick_plans[tick].backward), plan::hash(plan.tick_plans[tick].backward));
  }
}

TEST(StepPlan, TicksCanBePlannedOneByOneInAnyOrder) {
  const Case one;
  const data::Batch batch = one.packer().batch(5);
  const std::vector<TickPlans> all = plan_ticks(one.experiment, batch);
  const TickPlanner planner(one.experiment, batch, {});
  ASSERT_GT(planner.ticks(), 1u);
  std::size_t end = all.size();
  for (std::size_t tick = planner.ticks(); tick-- > 0;) {
    const std::vector<TickPlans> mine = planner.plan(tick);
    ASSERT_GE(end, mine.size());
    end -= mine.size();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      EXPECT_EQ(plan::hash(mine[i].forward), plan::hash(all[end + i].forward));
    }
  }
  EXPECT_EQ(end, 0u);
}

TEST(StepPlan, ThreadsGetWhatOneThreadGets) {
  constexpr int kThreads = 4;
  constexpr std::int64_t kSteps = 8;
  const Case one;
  const data::Packer packer = one.packer();
  std::vector<StepPlan> expected;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    expected.push_back(plan_step(one.experiment, one.packer(), 0, step));
  }
  std::vector<std::vector<StepPlan>> found(kThreads, std::vector<StepPlan>(kSteps));
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::int64_t i = 0; i < kSteps; ++i) {  // each begins elsewhere
        const std::int64_t step = (i + 2 * thread) % kSteps;
        found[static_cast<std::size_t>(thread)][static_cast<std::size_t>(step)] =
            plan_step(one.experiment, packer, 0, step);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& plans : found) {
    for (std::size_t step = 0; step < plans.size(); ++step) {
      expect_equal(plans[step], expected[step]);
    }
  }
}

}  // namespace
}  // namespace cadenza::program::test_step_plan
