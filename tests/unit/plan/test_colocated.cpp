// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "cadenza/base/error.hpp"
#include "cadenza/plan/validate.hpp"
#include "cases.hpp"
#include "oracle.hpp"

namespace cadenza::plan::test_colocated {
namespace {

using test::workload;

TEST(Colocated, InPlaceMovesNothing) {
  const Plan plan = colocated(workload({{300, 1}, {}, {128}}));
  ASSERT_EQ(plan.stages.size(), 1U);
  EXPECT_TRUE(plan.stages[0].moves.empty());
  ASSERT_EQ(plan.stages[0].tasks.size(), 3U);
  EXPECT_EQ(plan.stages[0].tasks[0].task, (Task{0, {0, 300}, {0, 300}, {0, 4}, Band::causal()}));
  EXPECT_DOUBLE_EQ(plan.stages[0].tasks[0].cost, 4.0 * 8 * 4 * (300 * 301 / 2));
  EXPECT_THAT(violations(plan), ::testing::IsEmpty());
  EXPECT_EQ(plan.merges.size(), 3U);
  EXPECT_EQ(plan.merges[2], (Merge{2, 2, {0, 128}, {0, 4}, {2}}));
}

TEST(Colocated, DedicatedServersTakeTrainersInTurn) {
  const Plan plan = colocated(workload({{300}, {200}, {100}}, 2));
  ASSERT_EQ(plan.stages.size(), 3U);
  EXPECT_TRUE(plan.stages[0].tasks.empty());
  std::vector<std::pair<Rank, int>> places;
  for (const PlacedTask& p : plan.stages[1].tasks) places.emplace_back(p.server, p.task.document);
  EXPECT_THAT(places, ::testing::ElementsAre(std::pair(3, 0), std::pair(3, 2), std::pair(4, 1)));
  EXPECT_EQ(plan.stages[1].moves.size(), 9U);
  EXPECT_EQ(plan.stages[2].moves.size(), 6U);
  EXPECT_THAT(violations(plan), ::testing::IsEmpty());
}

// Reference plan of the published planner: 4 ranks of 16384 tokens, a document of 32768 as
// head-tail chunks on the first two.
TEST(Colocated, InitialLoadsEqualThePublishedOnes) {
  Workload w;
  w.ranks = 4;
  w.servers = {0, 1, 2, 3};
  w.shape = {32, 8, 128, 4};
  w.lengths = {32768, 8192, 8192, 4096, 4096, 4096, 4096};
  w.homes = {{0, 0, {0, 8192}}, {0, 0, {24576, 32768}}, {1, 0, {8192, 24576}},
             {2, 1, {0, 8192}}, {2, 2, {0, 8192}},      {3, 3, {0, 4096}},
             {3, 4, {0, 4096}}, {3, 5, {0, 4096}},      {3, 6, {0, 4096}}};
  const Plan plan = colocated(w);
  const double pair = 4.0 * 128 * 32;
  EXPECT_THAT(plan.cost_per_rank, ::testing::ElementsAre(268443648 * pair, 268443648 * pair,
                                                         67117056 * pair, 33562624 * pair));
  EXPECT_THAT(violations(plan), ::testing::IsEmpty());
  EXPECT_THAT(mirror_violations(plan, mirror(plan)), ::testing::IsEmpty());
  const Plan balanced = cad(w, 1, 0.0);
  EXPECT_THAT(violations(balanced), ::testing::IsEmpty());
  EXPECT_LE(imbalance(balanced), 1.001);
  const Plan coarse = cad(w, 128, 0.0);
  EXPECT_THAT(violations(coarse), ::testing::IsEmpty());
  EXPECT_LE(imbalance(coarse), 1.03);
}

TEST(Colocated, DocumentsThatSpanRanksMoveOnlyKeys) {
  const Plan plan = colocated(test::split_document(20));
  ASSERT_EQ(plan.stages.size(), 2U);
  EXPECT_EQ(plan.stages[0].tasks.size(), 1U);
  EXPECT_EQ(plan.stages[1].tasks.size(), 1U);
  ASSERT_EQ(plan.stages[1].moves.size(), 2U);
  EXPECT_EQ(plan.stages[1].moves[0], (Move{0, 1, Tensor::k, 0, {0, 10}, {0, 2}, 10 * 2 * 8 * 4}));
  EXPECT_THAT(violations(plan), ::testing::IsEmpty());
  EXPECT_EQ(test::carry_out(plan), "");
  const Plan backward = mirror(plan);
  ASSERT_EQ(backward.stages.size(), 3U);
  EXPECT_THAT(mirror_violations(plan, backward), ::testing::IsEmpty());
}

TEST(Colocated, NeedsAServer) {
  Workload w = workload({{300}});
  w.servers.clear();
  EXPECT_THROW(colocated(w), Error);
  EXPECT_THROW(cad(w, 128, 0.1), Error);
}

}  // namespace
}  // namespace cadenza::plan::test_colocated
