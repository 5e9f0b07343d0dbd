// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "cadenza/base/error.hpp"
#include "cadenza/plan/placement.hpp"

namespace cadenza::plan {
namespace {

config::Experiment experiment(std::int64_t data, std::int64_t servers) {
  config::Experiment e;
  e.model.d_model = 64;
  e.model.heads = 8;
  e.model.kv_heads = 2;
  e.parallel.data = data;
  e.attention.servers = servers;
  return e;
}

data::Batch batch(const std::vector<std::vector<std::int64_t>>& microbatches) {
  data::Batch b;
  for (const auto& lengths : microbatches) {
    data::Microbatch& microbatch = b.microbatches.emplace_back();
    for (std::int64_t length : lengths) microbatch.documents.push_back({9, {5, 5 + length}});
  }
  return b;
}

TEST(MakeWorkload, TickTakesOneMicrobatchOfEveryDataRank) {
  const data::Batch b = batch({{10}, {20, 21}, {30, 31, 32}, {40}});
  const Workload w = make_workload(experiment(2, 0), b, 1);
  EXPECT_THAT(w.lengths, testing::ElementsAre(30, 31, 32, 40));
  EXPECT_THAT(w.homes, testing::ElementsAre(Home{0, 0, {0, 30}}, Home{0, 1, {0, 31}},
                                            Home{0, 2, {0, 32}}, Home{1, 3, {0, 40}}));
  EXPECT_THAT(w.servers, testing::ElementsAre(0, 1));
  EXPECT_EQ(w.ranks, 2);
  EXPECT_EQ(w.shape.heads, 8);
  EXPECT_EQ(w.shape.kv_heads, 2);
  EXPECT_EQ(w.shape.head_dim, 8);
  EXPECT_EQ(w.shape.element_bytes, 4);
  EXPECT_EQ(w.shape.accumulator_bytes, 4);
}

TEST(MakeWorkload, DedicatedServersFollowTheTrainers) {
  config::Experiment e = experiment(2, 3);
  e.run.dtype = config::Dtype::float64;
  const Workload w = make_workload(e, batch({{10}, {20}}), 0);
  EXPECT_THAT(w.servers, testing::ElementsAre(2, 3, 4));
  EXPECT_EQ(w.ranks, 5);
  EXPECT_EQ(w.shape.element_bytes, 8);
  EXPECT_EQ(w.shape.accumulator_bytes, 8);
}

TEST(MakeWorkload, Bfloat16AddsUpInFloat) {
  config::Experiment e = experiment(1, 0);
  e.run.dtype = config::Dtype::bfloat16;
  const Workload w = make_workload(e, batch({{10}}), 0);
  EXPECT_EQ(w.shape.element_bytes, 2);
  EXPECT_EQ(w.shape.accumulator_bytes, 4);
}

TEST(MakeWorkload, RefusesTicksThatTheStepDoesNotHave) {
  const data::Batch b = batch({{10}, {20}});
  EXPECT_THROW(make_workload(experiment(2, 0), b, 1), Error);
  EXPECT_THROW(make_workload(experiment(2, 0), b, -1), Error);
}

TEST(MakePlan, TakesTheNamedPlacement) {
  config::Experiment e = experiment(2, 0);
  e.attention.tolerance = 0;
  const Workload w = make_workload(e, batch({{5000}, {200}}), 0);
  e.attention.placement = config::PlacementKind::colocated;
  EXPECT_EQ(hash(make_plan(e.attention, w)), hash(colocated(w)));
  e.attention.placement = config::PlacementKind::cad;
  EXPECT_EQ(hash(make_plan(e.attention, w)), hash(cad(w, 128, 0)));
  EXPECT_NE(hash(cad(w, 128, 0)), hash(colocated(w)));
}

}  // namespace
}  // namespace cadenza::plan
