// SPDX-License-Identifier: Apache-2.0
// Programs that cannot end: none of real plans, and all with planted faults.
#include <gmock/gmock.h>

#include "cadenza/simulate/simulator.hpp"
#include "unit/program/support.hpp"
#include "unit/sanitized.hpp"

namespace cadenza::simulate::test_faults {
namespace {

using program::Instruction;
using program::Operation;
using program::Pass;
using program::Program;
using program::StepShape;
using program::TickPlans;
using program::test::one_move;
using program::test::one_server;
using program::test::random_step;
using program::test::RandomStep;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

using Instructions = std::vector<Instruction>;

struct Setting {
  Setting(int trainers, int servers, int layers, int ticks)
      : experiment(program::test::experiment_of(trainers, servers, layers, ticks)),
        step_shape(experiment) {}
  std::vector<Program> programs(const std::vector<TickPlans>& tick_plans) const {
    return program::test::make_programs(step_shape, tick_plans);
  }
  std::vector<std::string> faults(const std::vector<Program>& programs,
                                  const std::vector<TickPlans>& tick_plans) const {
    return simulate::faults(experiment, step_shape, programs, tick_plans);
  }
  config::Experiment experiment;
  StepShape step_shape;
};

/// First operation of this kind, pass and stage.
Instructions::iterator find(Program& program, Operation operation, Pass pass = Pass::forward,
                            int stage = -1) {
  const auto found =
      std::ranges::find_if(program.instructions, [&](const Instruction& instruction) {
        return instruction.operation == operation && instruction.pass == pass &&
               instruction.stage == stage;
      });
  EXPECT_NE(found, program.instructions.end()) << program::name(operation);
  return found;
}

TEST(Faults, NoneInProgramsOfRealPlans) {
  int exchanges = 0;
  for (std::uint64_t seed = 0; seed < (cadenza::testing::kSanitized ? 60 : 200); ++seed) {
    const RandomStep& step = random_step(seed);
    EXPECT_THAT(faults(step.experiment, *step.step_shape, step.programs, step.tick_plans),
                IsEmpty())
        << seed;
    for (const TickPlans& tick : step.tick_plans) {
      for (const plan::Stage& stage : tick.forward.stages) exchanges += !stage.moves.empty();
    }
  }
  EXPECT_GT(exchanges, 100) << "the random plans hardly move anything";
}

TEST(Faults, NoneInProgramsOfEvaluations) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const RandomStep& step = random_step(seed, true);
    EXPECT_THAT(faults(step.experiment, *step.step_shape, step.programs, step.tick_plans),
                IsEmpty())
        << seed;
  }
}

TEST(Faults, AnyRemovedPostIsFoundOnBothSides) {
  const std::vector tick_plans = {one_move(), one_move()};
  const std::vector<Program> sound = Setting(2, 0, 2, 2).programs(tick_plans);
  ASSERT_THAT(Setting(2, 0, 2, 2).faults(sound, tick_plans), IsEmpty());
  int removed = 0;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (std::size_t i = 0; i < sound[rank].instructions.size(); ++i) {
      const Operation operation = sound[rank].instructions[i].operation;
      if (operation != Operation::post && operation != Operation::post_results) continue;
      std::vector<Program> broken = sound;
      broken[rank].instructions.erase(broken[rank].instructions.begin() +
                                      static_cast<std::ptrdiff_t>(i));
      EXPECT_THAT(Setting(2, 0, 2, 2).faults(broken, tick_plans),
                  ElementsAre(StartsWith("rank 0"), StartsWith("rank 1")))
          << to_string(sound[rank].instructions[i]);
      ++removed;
    }
  }
  EXPECT_EQ(removed, 2 * 2 * 2 * 2 * 2);  // ranks, ticks, layers, passes, stages
}

TEST(Faults, AWaitWhosePeerNeverPostsIsNamed) {
  const std::vector tick_plans = {one_move()};
  const Setting setting(2, 0, 1, 1);
  std::vector<Program> programs = setting.programs(tick_plans);
  Instructions& instructions = programs[1].instructions;
  instructions.erase(find(programs[1], Operation::post_results, Pass::backward, 2));
  EXPECT_THAT(setting.faults(programs, tick_plans),
              ElementsAre(HasSubstr("rank 0 never gets past operation 14: "
                                    "tick 0 layer 0 backward wait_results stage 2"),
                          HasSubstr("rank 1 never gets past operation 19: "
                                    "backward reduce_gradients")));
}

TEST(Faults, AServerThatEndsEarlyHoldsItsTrainerUp) {
  const std::vector tick_plans = {one_server()};
  const Setting setting(1, 1, 1, 1);
  std::vector<Program> programs = setting.programs(tick_plans);
  programs[1].instructions.resize(4);  // it leaves after the forward pass
  EXPECT_THAT(setting.faults(programs, tick_plans),
              ElementsAre(HasSubstr("backward wait_results stage 1")));
  programs.pop_back();  // it was never there
  EXPECT_THAT(setting.faults(programs, tick_plans),
              ElementsAre(HasSubstr("forward wait_results stage 1")));
}

TEST(Faults, WaitBeforePostIsFound) {
  const std::vector tick_plans = {one_move()};
  const Setting setting(2, 0, 1, 1);
  std::vector<Program> programs = setting.programs(tick_plans);
  std::iter_swap(find(programs[0], Operation::post_results, Pass::forward, 2),
                 find(programs[0], Operation::wait_results, Pass::forward, 2));
  EXPECT_THAT(setting.faults(programs, tick_plans),
              ElementsAre(HasSubstr("rank 0 never gets past operation 5: tick 0 layer 0 forward "
                                    "wait_results stage 2"),
                          // what it sends lies where the backward pass begins
                          HasSubstr("backward attention_outputs")));
}

TEST(Faults, ACycleOfWaitsIsFound) {
  // Rank 0 ends the first tick before it posts the second; rank 1 the other way round.
  const std::vector tick_plans = {one_move(), one_move()};
  const Setting setting(2, 0, 1, 2);
  const auto exchange = [](int tick) {
    Instruction post{
        .operation = Operation::post, .tick = tick, .plan = tick, .layer = 0, .stage = 1};
    Instruction wait = post;
    wait.operation = Operation::wait;
    return Instructions{post, wait};
  };
  std::vector<Program> programs(2);
  programs[1].rank = 1;
  for (const int tick : {0, 1}) {
    for (const Instruction& instruction : exchange(tick))
      programs[0].instructions.push_back(instruction);
    for (const Instruction& instruction : exchange(1 - tick))
      programs[1].instructions.push_back(instruction);
  }
  EXPECT_THAT(setting.faults(programs, tick_plans),
              ElementsAre("rank 0 never gets past operation 2: tick 1 layer 0 forward post stage 1",
                          "rank 1 never gets past operation 1: "
                          "tick 1 layer 0 forward wait stage 1"));
  // With both posts first there is none.
  for (Program& program : programs) std::swap(program.instructions[1], program.instructions[2]);
  EXPECT_THAT(setting.faults(programs, tick_plans), IsEmpty());
}

TEST(Faults, ARankThatSkipsACollectiveIsFound) {
  const std::vector tick_plans = {one_move()};
  const Setting setting(2, 0, 1, 1);
  std::vector<Program> programs = setting.programs(tick_plans);
  programs[1].instructions.erase(find(programs[1], Operation::reduce_gradients, Pass::backward));
  EXPECT_THAT(setting.faults(programs, tick_plans),
              ElementsAre("rank 0 never gets past operation 18: backward reduce_gradients",
                          "rank 1 never gets past operation 20: backward gradient_norm"));
  programs[0].instructions.erase(find(programs[0], Operation::reduce_gradients, Pass::backward));
  EXPECT_THAT(setting.faults(programs, tick_plans), IsEmpty());
}

TEST(Faults, ALayerThatARankDoesNotGatherHoldsBothUp) {
  const std::vector tick_plans = {one_move()};
  Setting setting(2, 0, 1, 1);
  setting.experiment.parallel.shard = config::Shard::parameters;
  setting.step_shape = StepShape(setting.experiment);
  std::vector<Program> programs = setting.programs(tick_plans);
  ASSERT_THAT(setting.faults(programs, tick_plans), IsEmpty());
  programs[1].instructions.erase(find(programs[1], Operation::gather_layer, Pass::backward));
  EXPECT_THAT(setting.faults(programs, tick_plans),
              ElementsAre(AllOf(StartsWith("rank 0"), HasSubstr("layer 0 backward wait_layer")),
                          AllOf(StartsWith("rank 1"), HasSubstr("layer 0 backward wait_layer"))));
}

TEST(Faults, ACollectiveTooManyIsFound) {
  const std::vector tick_plans = {one_move()};
  const Setting setting(2, 0, 1, 1);
  std::vector<Program> programs = setting.programs(tick_plans);
  programs[0].instructions.push_back(
      {.operation = Operation::reduce_gradients, .pass = Pass::backward});
  EXPECT_THAT(setting.faults(programs, tick_plans),
              ElementsAre("rank 0 never gets past operation 21: backward reduce_gradients"));
}

TEST(Faults, WhatNobodyReceivesIsFound) {
  const std::vector tick_plans = {one_move()};
  const Setting setting(2, 0, 1, 1);
  std::vector<Program> programs = setting.programs(tick_plans);
  // Rank 1 sends its last results; the owner neither posts nor waits for them, so nobody is stuck.
  Instructions& instructions = programs[0].instructions;
  instructions.erase(find(programs[0], Operation::post_results, Pass::backward, 2));
  instructions.erase(find(programs[0], Operation::wait_results, Pass::backward, 2));
  EXPECT_THAT(setting.faults(programs, tick_plans),
              ElementsAre("rank 1: rank 0 never receives what it posts: tick 0 layer 0 backward "
                          "stage 2 results"));
}

TEST(Faults, CollectiveAndWaitCrossedIsFound) {
  // Rank 1 reduces before it posts what rank 0 needs in order to reach its own reduction.
  const std::vector tick_plans = {one_move()};
  const Setting setting(2, 0, 1, 1);
  std::vector<Program> programs = setting.programs(tick_plans);
  Instructions& instructions = programs[1].instructions;
  const Instruction reduce = *find(programs[1], Operation::reduce_gradients, Pass::backward);
  instructions.erase(find(programs[1], Operation::reduce_gradients, Pass::backward));
  instructions.insert(find(programs[1], Operation::post_results, Pass::backward, 2), reduce);
  EXPECT_THAT(
      setting.faults(programs, tick_plans),
      ElementsAre(HasSubstr("backward wait_results stage 2"), HasSubstr("reduce_gradients")));
}

TEST(Faults, FaultsInProgramsOfRealPlansAreFound) {
  int planted = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    RandomStep step = random_step(seed);
    plan::test::Draw draw(seed + 1000);
    std::vector<std::pair<std::size_t, std::size_t>> posts;
    for (std::size_t rank = 0; rank < step.programs.size(); ++rank) {
      for (std::size_t i = 0; i < step.programs[rank].instructions.size(); ++i) {
        const Operation operation = step.programs[rank].instructions[i].operation;
        if (operation == Operation::post || operation == Operation::post_results ||
            operation == Operation::send) {
          posts.emplace_back(rank, i);
        }
      }
    }
    if (posts.empty()) continue;
    const auto [rank, i] = draw.of(posts);
    Instructions& instructions = step.programs[rank].instructions;
    instructions.erase(instructions.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_THAT(faults(step.experiment, *step.step_shape, step.programs, step.tick_plans),
                Not(IsEmpty()))
        << seed;
    ++planted;
  }
  EXPECT_GT(planted, 50);
}

}  // namespace
}  // namespace cadenza::simulate::test_faults
