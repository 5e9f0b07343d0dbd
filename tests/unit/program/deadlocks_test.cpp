// SPDX-License-Identifier: Apache-2.0
// The checker of deadlocks: silent for the programs of real plans, and not for planted faults.
#include <gmock/gmock.h>

#include "unit/program/support.hpp"

namespace cadenza::program {
namespace {

using test::make_programs;
using test::one_move;
using test::one_server;
using test::outline_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

using Steps = std::vector<Step>;

/// First operation of this kind, pass and stage.
Steps::iterator find(Program& program, Operation operation, Pass pass = Pass::forward,
                     int stage = -1) {
  const auto found = std::ranges::find_if(program.steps, [&](const Step& step) {
    return step.operation == operation && step.pass == pass && step.stage == stage;
  });
  EXPECT_NE(found, program.steps.end()) << name(operation);
  return found;
}

TEST(Deadlocks, NoneInProgramsOfRealPlans) {
  int exchanges = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const test::RandomStep step(seed);
    EXPECT_THAT(deadlocks(*step.outline, step.programs, step.ticks), IsEmpty()) << seed;
    for (const TickPlans& tick : step.ticks) {
      for (const plan::Stage& stage : tick.forward.stages) exchanges += !stage.moves.empty();
    }
  }
  EXPECT_GT(exchanges, 100) << "the random plans hardly move anything";
}

TEST(Deadlocks, AnyRemovedPostIsFoundOnBothSides) {
  const std::vector ticks = {one_move(), one_move()};
  const std::vector<Program> sound = make_programs(outline_of(2, 0, 2, 2), ticks);
  ASSERT_THAT(deadlocks(outline_of(2, 0, 2, 2), sound, ticks), IsEmpty());
  int removed = 0;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (std::size_t i = 0; i < sound[rank].steps.size(); ++i) {
      const Operation operation = sound[rank].steps[i].operation;
      if (operation != Operation::post && operation != Operation::post_results) continue;
      std::vector<Program> broken = sound;
      broken[rank].steps.erase(broken[rank].steps.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_THAT(deadlocks(outline_of(2, 0, 2, 2), broken, ticks),
                  ElementsAre(StartsWith("rank 0"), StartsWith("rank 1")))
          << to_string(sound[rank].steps[i]);
      ++removed;
    }
  }
  EXPECT_EQ(removed, 2 * 2 * 2 * 2 * 2);  // ranks, ticks, layers, passes, stages
}

TEST(Deadlocks, AWaitWhosePeerNeverPostsIsNamed) {
  const std::vector ticks = {one_move()};
  const Outline outline = outline_of(2, 0, 1, 1);
  std::vector<Program> programs = make_programs(outline, ticks);
  Steps& steps = programs[1].steps;
  steps.erase(find(programs[1], Operation::post_results, Pass::backward, 2));
  EXPECT_THAT(deadlocks(outline, programs, ticks),
              ElementsAre(HasSubstr("rank 0 never gets past operation 14: "
                                    "tick 0 layer 0 backward wait_results stage 2"),
                          HasSubstr("rank 1 never gets past operation 19: "
                                    "backward reduce_gradients")));
}

TEST(Deadlocks, AServerThatEndsEarlyHoldsItsTrainerUp) {
  const std::vector ticks = {one_server()};
  const Outline outline = outline_of(1, 1, 1, 1);
  std::vector<Program> programs = make_programs(outline, ticks);
  programs[1].steps.resize(4);  // it leaves after the forward pass
  EXPECT_THAT(deadlocks(outline, programs, ticks),
              ElementsAre(HasSubstr("backward wait_results stage 1")));
  programs.pop_back();  // it was never there
  EXPECT_THAT(deadlocks(outline, programs, ticks),
              ElementsAre(HasSubstr("forward wait_results stage 1")));
}

TEST(Deadlocks, WaitBeforePostIsFound) {
  const std::vector ticks = {one_move()};
  const Outline outline = outline_of(2, 0, 1, 1);
  std::vector<Program> programs = make_programs(outline, ticks);
  std::iter_swap(find(programs[0], Operation::post_results, Pass::forward, 2),
                 find(programs[0], Operation::wait_results, Pass::forward, 2));
  EXPECT_THAT(deadlocks(outline, programs, ticks),
              ElementsAre(HasSubstr("rank 0 never gets past operation 5: tick 0 layer 0 forward "
                                    "wait_results stage 2"),
                          HasSubstr("backward wait stage 1")));
}

TEST(Deadlocks, ACycleOfWaitsIsFound) {
  // Rank 0 waits for the first tick before it posts the second; rank 1 the other way round.
  const std::vector ticks = {one_move(), one_move()};
  const Outline outline = outline_of(2, 0, 1, 2);
  const auto exchange = [](int tick) {
    Step post{.operation = Operation::post, .tick = tick, .layer = 0, .stage = 1};
    Step wait = post;
    wait.operation = Operation::wait;
    return Steps{post, wait};
  };
  std::vector<Program> programs(2);
  programs[1].rank = 1;
  for (const int tick : {0, 1}) {
    for (const Step& step : exchange(tick)) programs[0].steps.push_back(step);
    for (const Step& step : exchange(1 - tick)) programs[1].steps.push_back(step);
  }
  EXPECT_THAT(deadlocks(outline, programs, ticks),
              ElementsAre("rank 0 never gets past operation 1: tick 0 layer 0 forward wait stage 1",
                          "rank 1 never gets past operation 1: "
                          "tick 1 layer 0 forward wait stage 1"));
  // With both posts first there is none.
  for (Program& program : programs) std::swap(program.steps[1], program.steps[2]);
  EXPECT_THAT(deadlocks(outline, programs, ticks), IsEmpty());
}

TEST(Deadlocks, ARankThatSkipsACollectiveIsFound) {
  const std::vector ticks = {one_move()};
  const Outline outline = outline_of(2, 0, 1, 1);
  std::vector<Program> programs = make_programs(outline, ticks);
  programs[1].steps.erase(find(programs[1], Operation::reduce_gradients, Pass::backward));
  EXPECT_THAT(deadlocks(outline, programs, ticks),
              ElementsAre("rank 0 never gets past operation 18: backward reduce_gradients",
                          "rank 1 never gets past operation 20: backward optimize"));
  programs[0].steps.erase(find(programs[0], Operation::reduce_gradients, Pass::backward));
  EXPECT_THAT(deadlocks(outline, programs, ticks), IsEmpty());
}

TEST(Deadlocks, ACollectiveTooManyIsFound) {
  const std::vector ticks = {one_move()};
  const Outline outline = outline_of(2, 0, 1, 1);
  std::vector<Program> programs = make_programs(outline, ticks);
  programs[0].steps.push_back({.operation = Operation::reduce_gradients, .pass = Pass::backward});
  EXPECT_THAT(deadlocks(outline, programs, ticks),
              ElementsAre("rank 0 never gets past operation 20: backward reduce_gradients"));
}

TEST(Deadlocks, WhatNobodyReceivesIsFound) {
  const std::vector ticks = {one_move()};
  const Outline outline = outline_of(2, 0, 1, 1);
  std::vector<Program> programs = make_programs(outline, ticks);
  // Rank 1 sends its last results; the owner neither posts nor waits for them, so nobody is stuck.
  Steps& steps = programs[0].steps;
  steps.erase(find(programs[0], Operation::post_results, Pass::backward, 2));
  steps.erase(find(programs[0], Operation::wait_results, Pass::backward, 2));
  EXPECT_THAT(deadlocks(outline, programs, ticks),
              ElementsAre("rank 1: rank 0 never receives what it posts: tick 0 layer 0 backward "
                          "stage 2 results"));
}

TEST(Deadlocks, CollectiveAndWaitCrossedIsFound) {
  // Rank 1 reduces before it posts what rank 0 needs in order to reach its own reduction.
  const std::vector ticks = {one_move()};
  const Outline outline = outline_of(2, 0, 1, 1);
  std::vector<Program> programs = make_programs(outline, ticks);
  Steps& steps = programs[1].steps;
  const Step reduce = *find(programs[1], Operation::reduce_gradients, Pass::backward);
  steps.erase(find(programs[1], Operation::reduce_gradients, Pass::backward));
  steps.insert(find(programs[1], Operation::post_results, Pass::backward, 2), reduce);
  EXPECT_THAT(
      deadlocks(outline, programs, ticks),
      ElementsAre(HasSubstr("backward wait_results stage 2"), HasSubstr("reduce_gradients")));
}

TEST(Deadlocks, FaultsInProgramsOfRealPlansAreFound) {
  int planted = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    test::RandomStep step(seed);
    plan::test::Draw draw(seed + 1000);
    std::vector<std::pair<std::size_t, std::size_t>> posts;
    for (std::size_t rank = 0; rank < step.programs.size(); ++rank) {
      for (std::size_t i = 0; i < step.programs[rank].steps.size(); ++i) {
        const Operation operation = step.programs[rank].steps[i].operation;
        if (operation == Operation::post || operation == Operation::post_results ||
            operation == Operation::send) {
          posts.emplace_back(rank, i);
        }
      }
    }
    if (posts.empty()) continue;
    const auto [rank, i] = draw.of(posts);
    Steps& steps = step.programs[rank].steps;
    steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_THAT(deadlocks(*step.outline, step.programs, step.ticks), Not(IsEmpty())) << seed;
    ++planted;
  }
  EXPECT_GT(planted, 50);
}

}  // namespace
}  // namespace cadenza::program
