// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "cadenza/base/error.hpp"
#include "cadenza/plan/placement.hpp"
#include "cases.hpp"

namespace cadenza::plan::test_workload {
namespace {

using config::PlacementKind;
using test::group_workload;

config::Experiment experiment() {
  return test::experiment(PlacementKind::cad, 1, 8, 2);
}

TEST(MakeWorkload, GroupsFollowOneAnother) {
  const Workload w = group_workload(experiment(), {{30, 31, 32}, {40}});
  EXPECT_THAT(w.lengths, ::testing::ElementsAre(30, 31, 32, 40));
  EXPECT_THAT(w.homes, ::testing::ElementsAre(Home{0, 0, {0, 30}}, Home{0, 1, {0, 31}},
                                              Home{0, 2, {0, 32}}, Home{1, 3, {0, 40}}));
  EXPECT_THAT(w.servers, ::testing::ElementsAre(0, 1));
  EXPECT_EQ(w.ranks, 2);
  EXPECT_EQ(w.context, 1);
  EXPECT_TRUE(w.order.natural());
  EXPECT_TRUE(w.queries.empty());
  EXPECT_EQ(w.shape.heads, 8);
  EXPECT_EQ(w.shape.kv_heads, 2);
  EXPECT_EQ(w.shape.head_dim, 8);
  EXPECT_EQ(w.shape.element_bytes, 4);
  EXPECT_EQ(w.shape.accumulator_bytes, 4);
}

TEST(MakeWorkload, GroupsShareAndIdleGroupsHaveNoTokens) {
  data::Microbatch microbatch;
  data::BatchDocument document;
  document.tokens = {5, 13};
  microbatch.documents = {document};
  config::Experiment e = test::experiment(PlacementKind::ring, 2);
  const std::vector<Occupant> groups = {nullptr, &microbatch, nullptr};
  const Workload w = make_workload(e, groups, 0);
  EXPECT_THAT(w.homes, ::testing::ElementsAre(Home{2, 0, {0, 4}}, Home{3, 0, {4, 8}}));
  EXPECT_THAT(w.servers, ::testing::ElementsAre(0, 1, 2, 3, 4, 5));
  e.attention.placement = PlacementKind::striped;
  EXPECT_EQ(make_workload(e, groups, 0).order, (TokenOrder{2, 1}));
  e.attention.placement = PlacementKind::block_striped;
  e.attention.block = 3;
  EXPECT_EQ(make_workload(e, groups, 0).order, (TokenOrder{2, 3}));
}

TEST(MakeWorkload, DedicatedServersFollowTheTrainers) {
  config::Experiment e = experiment();
  e.run.dtype = config::Dtype::float64;
  const Workload w = group_workload(e, {{10}, {20}}, 3);
  EXPECT_THAT(w.servers, ::testing::ElementsAre(2, 3, 4));
  EXPECT_EQ(w.ranks, 5);
  EXPECT_EQ(w.shape.element_bytes, 8);
  EXPECT_EQ(w.shape.accumulator_bytes, 8);
  e.attention.mixed = true;
  EXPECT_THAT(group_workload(e, {{10}, {20}}, 3).servers, ::testing::ElementsAre(0, 1, 2, 3, 4));
}

TEST(MakeWorkload, TensorRanksHaveTheirHeads) {
  config::Experiment e = experiment();
  e.parallel.tensor = 2;
  const Workload w = group_workload(e, {{10}});
  EXPECT_EQ(w.shape.heads, 4);
  EXPECT_EQ(w.shape.kv_heads, 1);
  EXPECT_EQ(w.shape.head_dim, 8);
}

TEST(MakeWorkload, Bfloat16AddsUpInFloat) {
  config::Experiment e = experiment();
  e.run.dtype = config::Dtype::bfloat16;
  const Workload w = group_workload(e, {{10}});
  EXPECT_EQ(w.shape.element_bytes, 2);
  EXPECT_EQ(w.shape.accumulator_bytes, 4);
}

TEST(MakePlan, TakesTheNamedPlacement) {
  config::Attention attention;
  attention.tolerance = 0;
  attention.inner_ring = 2;
  attention.head_parallel = 2;
  config::Experiment e = test::experiment(PlacementKind::ring, 4);
  const Workload w = group_workload(e, {{5000, 200}});
  const auto planned = [&](PlacementKind placement) {
    attention.placement = placement;
    return hash(make_plan(attention, w));
  };
  for (const PlacementKind placement : {PlacementKind::colocated, PlacementKind::all_gather}) {
    EXPECT_EQ(planned(placement), hash(colocated(w)));
  }
  for (const PlacementKind placement :
       {PlacementKind::ring, PlacementKind::zigzag, PlacementKind::striped,
        PlacementKind::block_striped, PlacementKind::double_ring}) {
    EXPECT_EQ(planned(placement), hash(ring(w, 2)));
  }
  EXPECT_EQ(planned(PlacementKind::ulysses), hash(ulysses(w)));
  EXPECT_EQ(planned(PlacementKind::ulysses_ring), hash(ulysses_ring(w, 2)));
  EXPECT_EQ(planned(PlacementKind::cad), hash(cad(w, attention)));
  EXPECT_THROW(planned(PlacementKind::automatic), Error);
}

TEST(MakePlan, SaysWhetherServersKeepTheirInputs) {
  config::Attention attention;
  const Workload w = group_workload(experiment(), {{5000}, {200}});
  EXPECT_FALSE(make_plan(attention, w).keeps_inputs);
  attention.inputs = config::Inputs::keep;
  const Plan plan = make_plan(attention, w);
  EXPECT_TRUE(plan.keeps_inputs);
  EXPECT_TRUE(mirror(plan).keeps_inputs);
}

}  // namespace
}  // namespace cadenza::plan::test_workload
