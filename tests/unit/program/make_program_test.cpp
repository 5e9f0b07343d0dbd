// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <map>
#include <set>
#include <tuple>

#include "unit/program/support.hpp"

namespace cadenza::program {
namespace {

using plan::Tensor;
using test::lines;
using test::make_programs;
using test::random_step;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Program, OfTheTrainerThatGivesATaskAway) {
  EXPECT_THAT(lines(make_program(0, 2, 1, std::vector{test::one_move()})),
              ElementsAre("tick 0 forward embed",                       //
                          "tick 0 layer 0 forward attention_inputs",    //
                          "tick 0 layer 0 forward begin_attention",     //
                          "tick 0 layer 0 forward post stage 1",        // inputs leave first
                          "tick 0 layer 0 forward attend stage 0",      //
                          "tick 0 layer 0 forward wait stage 1",        //
                          "tick 0 layer 0 forward post stage 2",        //
                          "tick 0 layer 0 forward wait stage 2",        //
                          "tick 0 layer 0 forward attention_outputs",   //
                          "tick 0 forward loss",                        //
                          "tick 0 layer 0 backward attention_outputs",  //
                          "tick 0 layer 0 backward begin_attention",    //
                          "tick 0 layer 0 backward post stage 1",       //
                          "tick 0 layer 0 backward attend stage 0",     //
                          "tick 0 layer 0 backward wait stage 1",       //
                          "tick 0 layer 0 backward post stage 2",       //
                          "tick 0 layer 0 backward wait stage 2",       //
                          "tick 0 layer 0 backward attention_inputs",   //
                          "tick 0 backward embed_gradient",             //
                          "backward reduce_gradients",                  //
                          "backward optimize"));
}

TEST(Program, OfTheTrainerThatTakesTheTask) {
  const std::vector<std::string> all = lines(make_program(1, 2, 1, std::vector{test::one_move()}));
  const std::vector<std::string> forward(all.begin() + 2, all.begin() + 9);
  EXPECT_THAT(
      forward,
      ElementsAre("tick 0 layer 0 forward begin_attention", "tick 0 layer 0 forward post stage 1",
                  "tick 0 layer 0 forward attend stage 0", "tick 0 layer 0 forward wait stage 1",
                  "tick 0 layer 0 forward attend stage 1", "tick 0 layer 0 forward post stage 2",
                  "tick 0 layer 0 forward wait stage 2"));
  EXPECT_EQ(all.size(), 23U);
}

TEST(Program, OfADedicatedServerIsAttentionAlone) {
  EXPECT_THAT(
      lines(make_program(1, 1, 1, std::vector{test::one_server()})),
      ElementsAre("tick 0 layer 0 forward begin_attention", "tick 0 layer 0 forward post stage 0",
                  "tick 0 layer 0 forward wait stage 0", "tick 0 layer 0 forward attend stage 0",
                  "tick 0 layer 0 forward post stage 1", "tick 0 layer 0 forward wait stage 1",
                  "tick 0 layer 0 backward begin_attention", "tick 0 layer 0 backward post stage 0",
                  "tick 0 layer 0 backward wait stage 0", "tick 0 layer 0 backward attend stage 0",
                  "tick 0 layer 0 backward post stage 1", "tick 0 layer 0 backward wait stage 1"));
}

TEST(Program, OfAnIdleDedicatedServerIsEmpty) {
  EXPECT_THAT(make_program(2, 1, 3, std::vector{test::one_server()}).steps, IsEmpty());
}

TEST(Program, RunsLayersBackwardAndTicksInOrder) {
  const std::vector ticks = {test::one_move(), test::one_move()};
  std::vector<std::tuple<int, Pass, int>> found;
  for (const Step& step : make_program(0, 2, 3, ticks).steps) {
    if (step.operation == Operation::begin_attention) {
      found.emplace_back(step.tick, step.pass, step.layer);
    }
  }
  std::vector<std::tuple<int, Pass, int>> expected;
  for (const int tick : {0, 1}) {
    for (const int layer : {0, 1, 2}) expected.emplace_back(tick, Pass::forward, layer);
    for (const int layer : {2, 1, 0}) expected.emplace_back(tick, Pass::backward, layer);
  }
  EXPECT_EQ(found, expected);
}

TEST(Program, WithoutTicksOnlyUpdates) {
  EXPECT_THAT(lines(make_program(0, 1, 4, {})),
              ElementsAre("backward reduce_gradients", "backward optimize"));
}

TEST(Program, LseIsAResultForwardAndAnInputBackward) {
  for (const Tensor what : {Tensor::o, Tensor::dq, Tensor::dk, Tensor::dv}) {
    EXPECT_TRUE(is_result(what, Pass::forward));
    EXPECT_TRUE(is_result(what, Pass::backward));
  }
  for (const Tensor what : {Tensor::q, Tensor::k, Tensor::v, Tensor::dout, Tensor::delta}) {
    EXPECT_FALSE(is_result(what, Pass::forward));
    EXPECT_FALSE(is_result(what, Pass::backward));
  }
  EXPECT_TRUE(is_result(Tensor::lse, Pass::forward));
  EXPECT_FALSE(is_result(Tensor::lse, Pass::backward));
}

TEST(Program, EveryOperationHasAName) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(Operation::optimize); ++i) {
    const std::string_view text = name(static_cast<Operation>(i));
    EXPECT_FALSE(text.empty());
    EXPECT_TRUE(names.insert(text).second) << text;
  }
  EXPECT_EQ(name(Operation::embed), "embed");
  EXPECT_EQ(name(Operation::optimize), "optimize");
}

/// Positions of a rank's operations on one stage of one attention.
struct StagePlaces {
  std::vector<std::size_t> posts, waits, attends;
};
using Attention = std::tuple<int, Pass, int>;  // tick, pass, layer

std::map<Attention, std::map<int, StagePlaces>> places_of(const Program& program) {
  std::map<Attention, std::map<int, StagePlaces>> places;
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    StagePlaces* stage = nullptr;
    if (step.stage >= 0) stage = &places[{step.tick, step.pass, step.layer}][step.stage];
    if (step.operation == Operation::post) stage->posts.push_back(i);
    if (step.operation == Operation::wait) stage->waits.push_back(i);
    if (step.operation == Operation::attend) stage->attends.push_back(i);
  }
  return places;
}

/// Holds a rank's operations of one attention to its plan.
void check_attention(const plan::Plan& plan, Rank rank, std::map<int, StagePlaces> places) {
  std::vector<std::size_t> input_posts, tasks_so_far;
  std::size_t before = 0;  // place of the latest wait or tasks of the stages before
  for (std::size_t index = 0; index < plan.stages.size(); ++index) {
    const plan::Stage& stage = plan.stages[index];
    const StagePlaces& at = places[static_cast<int>(index)];
    bool exchanges = false, results = false, computes = false;
    for (const plan::Move& move : stage.moves) {
      exchanges |= move.from == rank || move.to == rank;
      results |= move.what == Tensor::o || move.what == Tensor::dq || move.what == Tensor::dk;
    }
    for (const plan::PlacedTask& task : stage.tasks) computes |= task.server == rank;
    ASSERT_EQ(at.posts.size(), exchanges ? 1U : 0U);
    ASSERT_EQ(at.waits.size(), exchanges ? 1U : 0U);
    ASSERT_EQ(at.attends.size(), computes ? 1U : 0U);
    if (exchanges) {
      EXPECT_LT(at.posts[0], at.waits[0]);
      EXPECT_LE(before, at.waits[0]);
      before = at.waits[0];
      if (results) {
        for (const std::size_t task : tasks_so_far) EXPECT_LT(task, at.posts[0]);
      } else {
        input_posts.push_back(at.posts[0]);
      }
    }
    if (computes) {
      EXPECT_LE(before, at.attends[0]);
      before = at.attends[0];
      tasks_so_far.push_back(at.attends[0]);
    }
  }
  for (const std::size_t post : input_posts) {
    for (const std::size_t task : tasks_so_far) EXPECT_LT(post, task);
  }
}

TEST(Program, PostsWaitsAndTasksFollowThePlan) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    const test::RandomStep step = random_step(seed);
    for (const Program& program : step.programs) {
      auto places = places_of(program);
      for (int tick = 0; tick < static_cast<int>(step.ticks.size()); ++tick) {
        for (const Pass pass : {Pass::forward, Pass::backward}) {
          for (int layer = 0; layer < step.layers; ++layer) {
            check_attention(step.ticks[static_cast<std::size_t>(tick)].of(pass), program.rank,
                            places[{tick, pass, layer}]);
          }
        }
      }
    }
  }
}

TEST(Program, TrainersRunTheModelServersOnlyAttention) {
  using enum Operation;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const test::RandomStep step = random_step(seed);
    const auto ticks = static_cast<long>(step.ticks.size());
    for (const Program& program : step.programs) {
      std::map<Operation, long> count;
      for (const Step& done : program.steps) ++count[done.operation];
      const long trains = program.rank < step.trainers ? 1 : 0;
      for (const Operation once : {embed, loss, embed_gradient}) {
        EXPECT_EQ(count[once], trains * ticks);
      }
      for (const Operation dense : {attention_inputs, attention_outputs}) {
        EXPECT_EQ(count[dense], trains * ticks * 2 * step.layers);
      }
      EXPECT_EQ(count[reduce_gradients], trains);
      EXPECT_EQ(count[optimize], trains);
      if (trains == 1) {
        EXPECT_EQ(count[begin_attention], ticks * 2 * step.layers);
      }
      EXPECT_EQ(count[post], count[wait]);
    }
  }
}

}  // namespace
}  // namespace cadenza::program
