// SPDX-License-Identifier: Apache-2.0
// Traffic against the definition: a search through the whole plan for every rank.
#include <gmock/gmock.h>

#include <map>
#include <set>
#include <tuple>

#include "cadenza/plan/placement.hpp"
#include "support.hpp"

namespace cadenza::program::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint64_t kSteps = 60;

template <typename Check>
void for_each_plan(Check check) {
  for (std::uint64_t seed = 0; seed < kSteps; ++seed) {
    const RandomStep& step = random_step(seed);
    for (const TickPlans& tick : step.tick_plans) {
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        check(tick.of(pass), pass, tick.traffic(pass));
      }
    }
  }
}

std::vector<std::uint32_t> list(Indices indices) {
  return {indices.begin(), indices.end()};
}

TEST(Traffic, FlowsAreTheMovesBetweenTwoRanks) {
  for_each_plan([](const plan::Plan& plan, Pass pass, const Traffic& traffic) {
    ASSERT_EQ(traffic.stages(), static_cast<int>(plan.stages.size()));
    for (int s = 0; s < traffic.stages(); ++s) {
      std::map<std::tuple<Rank, Rank, bool>, std::vector<std::uint32_t>> expected;
      const auto& moves = plan.stages[static_cast<std::size_t>(s)].moves;
      for (std::uint32_t i = 0; i < moves.size(); ++i) {
        expected[{moves[i].from, moves[i].to, is_result(moves[i].what, pass)}].push_back(i);
      }
      ASSERT_EQ(traffic.messages(s).size(), expected.size());
      auto next = expected.begin();
      for (const PlannedMessage& message : traffic.messages(s)) {
        EXPECT_EQ(std::tuple(message.from, message.to, message.results), next->first);
        EXPECT_EQ(list(traffic.moves(s, message)), next->second);
        std::int64_t bytes = 0;
        bool slices = false;
        const AttentionShape& shape = plan.workload.shape;
        for (const std::uint32_t i : next->second) {
          bytes += moves[i].bytes;
          const int heads = plan::is_key_side(moves[i].what) ? shape.kv_heads : shape.heads;
          slices = slices || moves[i].heads != Range{0, heads};
        }
        EXPECT_EQ(message.bytes, bytes);
        EXPECT_EQ(message.slices, slices);
        ++next;
      }
    }
  });
}

TEST(Traffic, EveryRankHasItsPart) {
  for_each_plan([](const plan::Plan& plan, Pass, const Traffic& traffic) {
    for (Rank rank = 0; rank < plan.workload.ranks; ++rank) {
      for (int s = 0; s < traffic.stages(); ++s) {
        const Part part = traffic.of(rank, s);
        std::vector<std::uint32_t> sends, receives, tasks;
        bool in[2] = {};
        bool any[2] = {};
        for (std::uint32_t i = 0; i < traffic.messages(s).size(); ++i) {
          const PlannedMessage& message = traffic.messages(s)[i];
          if (message.from == rank) sends.push_back(i);
          if (message.to == rank) receives.push_back(i);
          any[message.results] = any[message.results] || message.from == rank || message.to == rank;
          in[message.results] = in[message.results] || message.to == rank;
        }
        const auto& placed = plan.stages[static_cast<std::size_t>(s)].tasks;
        for (std::uint32_t i = 0; i < placed.size(); ++i) {
          if (placed[i].server == rank) tasks.push_back(i);
        }
        EXPECT_EQ(part.sends.size(), static_cast<std::int64_t>(sends.size()));
        if (!sends.empty()) {
          EXPECT_EQ(part.sends.begin, sends.front());
        }
        std::ranges::stable_sort(receives, {}, [&](std::uint32_t i) {
          return std::tuple(traffic.messages(s)[i].from, traffic.messages(s)[i].results);
        });
        EXPECT_EQ(list(part.receives), receives);
        EXPECT_EQ(list(part.tasks), tasks);
        EXPECT_EQ(part.inputs, any[0]);
        EXPECT_EQ(part.results, any[1]);
        EXPECT_EQ(part.inputs_arrive, in[0]);
        EXPECT_EQ(part.results_arrive, in[1]);
      }
    }
  });
}

TEST(Traffic, HomesOfARank) {
  for_each_plan([](const plan::Plan& plan, Pass, const Traffic& traffic) {
    std::size_t found = 0;
    for (Rank rank = 0; rank < plan.workload.ranks; ++rank) {
      for (const std::uint32_t i : traffic.homes(rank)) {
        EXPECT_EQ(plan.workload.homes[i].rank, rank);
        ++found;
      }
    }
    EXPECT_EQ(found, plan.workload.homes.size());
  });
}

/// The last stage before `stage` that brings rows of the move to its sender; -1: at home.
int brought_by(const plan::Plan& plan, const plan::Move& move, int stage) {
  for (const plan::Home& home : plan.workload.homes) {
    if (home.rank == move.from && home.document == move.document &&
        home.tokens.overlaps(move.tokens)) {
      return -1;
    }
  }
  for (int earlier = stage - 1; earlier >= 0; --earlier) {
    for (const plan::Move& m : plan.stages[static_cast<std::size_t>(earlier)].moves) {
      if (m.to == move.from && m.what == move.what && m.document == move.document &&
          m.tokens.overlaps(move.tokens) && m.heads.overlaps(move.heads)) {
        return earlier;
      }
    }
  }
  return -1;
}

/// Calls check(part of a rank, expected place, stage) for all ranks that send or receive inputs, or
/// results, in a stage, which is posted at the latest place of its moves.
/// @param place_of  (plan, move, stage)
template <typename PlaceOf, typename Check>
void for_each_posted(bool results, PlaceOf place_of, Check check) {
  for_each_plan([&](const plan::Plan& plan, Pass pass, const Traffic& traffic) {
    for (int s = 0; s < traffic.stages(); ++s) {
      int place = -1;
      std::set<Rank> ranks;
      for (const plan::Move& move : plan.stages[static_cast<std::size_t>(s)].moves) {
        if (is_result(move.what, pass) != results) continue;
        place = std::max(place, place_of(plan, move, s));
        ranks.insert({move.from, move.to});
      }
      for (const Rank rank : ranks) {
        SCOPED_TRACE(testing::Message() << "rank " << rank << " stage " << s);
        check(traffic.of(rank, s), place, s);
      }
    }
  });
}

TEST(Traffic, InputsLeaveWhenTheLastOfThemIsThereOrTwoStagesAhead) {
  int passed_on = 0, ahead = 0;
  const auto place_of = [&](const plan::Plan& plan, const plan::Move& move, int stage) {
    const int brought = brought_by(plan, move, stage);
    const int soonest = plan.paced && stage > 2 ? stage - 2 : -1;
    passed_on += brought >= 0;
    ahead += brought < soonest;
    return std::max(brought, soonest);
  };
  for_each_posted(false, place_of,
                  [](const Part& part, int place, int) { EXPECT_EQ(part.ready, place); });
  EXPECT_GT(passed_on, 100);
  EXPECT_GT(ahead, 20);
}

/// The last stage before `stage` whose tasks compute rows of the move.
int computed_by(const plan::Plan& plan, const plan::Move& move, int stage) {
  const bool keys = plan::is_key_side(move.what);
  for (int earlier = stage - 1; earlier >= 0; --earlier) {
    for (const plan::PlacedTask& placed : plan.stages[static_cast<std::size_t>(earlier)].tasks) {
      const Task& task = placed.task;
      if (placed.server == move.from && task.document == move.document &&
          (keys ? task.k : task.q).overlaps(move.tokens)) {
        return earlier;
      }
    }
  }
  return -1;
}

TEST(Traffic, ResultsLeaveWhenTheLastOfThemIsComputed) {
  int early = 0;
  for_each_posted(true, computed_by, [&](const Part& part, int place, int stage) {
    EXPECT_GE(place, 0);
    EXPECT_EQ(part.complete, place);
    early += place + 1 < stage;
  });
  EXPECT_GT(early, 20);
}

/// Both ends of a pair then have the same order.
TEST(Traffic, AllPostAStageAtOnePlace) {
  TickPlans plans = one_move();
  plans.forward.workload.ranks = 3;
  plans.forward.stages = {{{move(0, 1, Tensor::k)}, {}},
                          {{}, {}},
                          {{move(1, 2, Tensor::k)}, {}},
                          {{move(0, 1, Tensor::v)}, {}}};
  for (plan::Stage& stage : plans.forward.stages) {
    for (plan::Move& each : stage.moves) each.heads = {0, 1};
  }
  const Traffic traffic(plans.forward, Pass::forward);
  EXPECT_EQ(traffic.of(1, 2).ready, 0) << "passes on what stage 0 brings";
  EXPECT_EQ(traffic.of(2, 2).ready, 0) << "only receives it, from rank 1";
  EXPECT_EQ(traffic.of(1, 3).ready, -1) << "only receives what is at home, before stage 2";
  EXPECT_EQ(traffic.of(0, 3).ready, -1) << "sends it to rank 1";
  EXPECT_EQ(traffic.of(0, 0).ready, -1);
  EXPECT_EQ(traffic.of(2, 3).ready, -1) << "has no part in it";
  plans.forward.paced = true;
  EXPECT_EQ(Traffic(plans.forward, Pass::forward).of(1, 3).ready, 1) << "two stages ahead";
}

TEST(Traffic, ARankThatPassesOnWhatCameLaterThanItsNeighbourWaitsForTheLatest) {
  TickPlans plans = one_move();
  plans.forward.workload.ranks = 3;
  plans.forward.stages = {{{move(0, 1, Tensor::k)}, {}},
                          {{move(0, 1, Tensor::v)}, {}},
                          {{}, {}},
                          {{move(1, 2, Tensor::k), move(1, 2, Tensor::v)}, {}}};
  for (plan::Stage& stage : plans.forward.stages) {
    for (plan::Move& each : stage.moves) each.heads = {0, 1};
  }
  const Traffic traffic(plans.forward, Pass::forward);
  EXPECT_EQ(traffic.of(1, 3).ready, 1);
  EXPECT_EQ(traffic.of(0, 0).ready, -1);
}

TEST(Traffic, MovesOfAnyOrderAreGrouped) {
  plan::Stage stage{
      {move(1, 0, Tensor::o), move(0, 1, Tensor::v), move(1, 0, Tensor::k), move(0, 1, Tensor::q)},
      {}};
  plan::Plan plan;
  plan.workload.ranks = 2;
  plan.stages = {stage};
  const Traffic traffic(plan, Pass::forward);
  ASSERT_EQ(traffic.messages(0).size(), 3u);
  EXPECT_THAT(list(traffic.moves(0, traffic.messages(0)[0])), ElementsAre(1, 3));
  EXPECT_FALSE(traffic.messages(0)[1].results);
  EXPECT_TRUE(traffic.messages(0)[2].results);
}

TEST(Traffic, NoneForRanksThatThePlanDoesNotKnow) {
  const Traffic traffic(one_move().forward, Pass::forward);
  EXPECT_THAT(traffic.of(7, 1).receives, IsEmpty());
  EXPECT_TRUE(traffic.of(7, 1).sends.empty());
  EXPECT_THAT(traffic.homes(7), IsEmpty());
  EXPECT_EQ(Traffic().stages(), 0);
}

}  // namespace
}  // namespace cadenza::program::test
