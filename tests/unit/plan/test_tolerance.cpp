// SPDX-License-Identifier: Apache-2.0
// attention.tolerance: auto, and the time of a layer that it compares.
#include <gmock/gmock.h>

#include <cmath>

#include "cadenza/plan/predict.hpp"
#include "cases.hpp"

namespace cadenza::plan::test_tolerance {
namespace {

using test::heavy_tailed;
using test::total_bytes;
using test::workload;

constexpr AttentionShape kShape = {4, 2, 8, 4};

cost::Pool pool(double bytes_per_second, double flops_per_second = 5e10) {
  config::Machine machine;
  machine.links.inside = {0, bytes_per_second, 0, 0};
  machine.attention.flops_per_second = flops_per_second;
  return {cost::Rates(machine, {}, kShape.head_dim), {}};
}

config::Attention automatic() {
  config::Attention attention;
  attention.block = 16;
  return attention;
}

Plan plan_on(const cost::Pool& machine, const Workload& w) {
  return make_plans(automatic(), std::span(&w, 1), machine).front();
}

/// Seconds of a layer's attention, both passes, of whole documents on one rank.
double attention_seconds(std::initializer_list<std::int64_t> lengths, double flops_per_second) {
  double pairs = 0;
  for (const std::int64_t length : lengths) pairs += static_cast<double>(length * (length + 1) / 2);
  return 3.5 * 4 * kShape.head_dim * kShape.heads * pairs / flops_per_second;
}

TEST(LayerSeconds, WithoutMessagesTheSlowestRankCounts) {
  cost::Pool machine = pool(1, 1e3);
  machine.forward_seconds = 2;
  machine.backward_seconds = 3;
  const Plan plan = colocated(workload({{5}, {7, 2}}));
  const double expected = 9 * 5 + attention_seconds({7, 2}, 1e3);
  EXPECT_NEAR(layer_seconds(std::span(&plan, 1), machine), expected, 1e-9 * expected);
}

TEST(LayerSeconds, RanksThatExchangeNothingMeetAfterTheLastMicrobatch) {
  cost::Pool machine = pool(1e30, 1e3);
  const Plan apart = colocated(workload({{64}, {32}}));
  const double most = attention_seconds({64}, 1e3),
               mean = (most + attention_seconds({32}, 1e3)) / 2;
  for (const int n : {1, 4, 100}) {
    machine.microbatches = n;
    const double expected = mean + (most - mean) / std::sqrt(n);
    EXPECT_NEAR(layer_seconds(std::span(&apart, 1), machine), expected, 1e-9 * expected);
    const Plan idle = colocated(workload({{64}, {32}, {}, {}}));
    EXPECT_NEAR(layer_seconds(std::span(&idle, 1), machine), expected, 1e-9 * expected);
  }
  const Workload whole = workload({{512}, {512, 512}});
  config::Attention attention = automatic();
  attention.tolerance = 0.3;  // something moves: both wait in every layer
  const Plan together = make_plans(attention, std::span(&whole, 1), machine).front();
  ASSERT_GT(total_bytes(together), 0);
  const double many = layer_seconds(std::span(&together, 1), machine);
  machine.microbatches = 1;
  EXPECT_DOUBLE_EQ(layer_seconds(std::span(&together, 1), machine), many);
}

TEST(LayerSeconds, AServersCapacityCounts) {
  Workload w = workload({{64}, {64}});
  w.capacities = {100, 50};
  const Plan plan = colocated(w);
  const double expected = 2 * attention_seconds({64}, 1e3);
  EXPECT_NEAR(layer_seconds(std::span(&plan, 1), pool(1, 1e3)), expected, 1e-9 * expected);
}

TEST(LayerSeconds, MessagesAreWaitedForUnlessTheOtherHalfHidesThem) {
  const Workload whole = workload({{512}, {}});
  const auto parts = halves(whole);
  config::Attention attention = automatic();
  attention.tolerance = 0;
  const auto seconds = [&](std::span<const Workload> of, double bytes_per_second) {
    const cost::Pool machine = pool(bytes_per_second);
    return layer_seconds(make_plans(attention, of, machine), machine);
  };
  const double computing = seconds(std::span(&whole, 1), 1e30);
  const Plan plan = make_plans(attention, std::span(&whole, 1), pool(1e30)).front();
  const double slowest = 3.5 * std::ranges::max(plan.cost_per_rank) / 5e10;
  EXPECT_NEAR(computing, slowest, 1e-9 * slowest) << "inputs do not wait for tasks at their home";
  EXPECT_GT(seconds(std::span(&whole, 1), 1e9), 1.1 * computing);
  EXPECT_NEAR(seconds(parts, 1e30), computing, 0.15 * computing);
  EXPECT_LT(seconds(parts, 1e9), seconds(std::span(&whole, 1), 1e9));
  EXPECT_GT(seconds(parts, 1e6), 10 * computing);
}

TEST(Tolerance, AutoTakesTheOneThatIsPredictedToBeFastest) {
  for (const double bytes_per_second : {1e6, 1e8, 5e9, 1e30}) {
    const cost::Pool machine = pool(bytes_per_second);
    const Workload w = workload(heavy_tailed(8, 8192, 3));
    const Plan plan = plan_on(machine, w);
    ASSERT_EQ(plan.trials.size(), 9u);
    for (const Trial& trial : plan.trials) {
      config::Attention given = automatic();
      given.tolerance = trial.tolerance;
      const std::vector<Plan> other = make_plans(given, std::span(&w, 1), machine);
      EXPECT_DOUBLE_EQ(layer_seconds(other, machine), trial.layer_seconds);
      EXPECT_GE(trial.layer_seconds, plan.trials.front().layer_seconds);
      EXPECT_TRUE(other.front().trials.empty());
      if (trial == plan.trials.front()) {
        EXPECT_EQ(hash(plan), hash(other.front()));
      }
    }
  }
}

TEST(Tolerance, AFreeNetworkBalancesAndASlowOneMovesLess) {
  const Workload w = workload(heavy_tailed(8, 8192, 3));
  const Plan free = plan_on(pool(1e30), w);
  const Plan slow = plan_on(pool(1e6), w);
  EXPECT_LE(free.trials.front().tolerance, 0.02);
  EXPECT_EQ(slow.trials.front().tolerance, 1e4);
  EXPECT_LT(imbalance(free), 1.03);
  EXPECT_LT(total_bytes(slow), total_bytes(free));
}

TEST(Tolerance, WhereNothingMovesAllAreEqualAndTheLargestIsTaken) {
  EXPECT_EQ(plan_on(pool(5e9), workload({{512}, {512}})).trials.front().tolerance, 1e4);
}

// With many ranks a step below the mean fills none of them: each receiver takes what its bound
// allows, so that the keys of a long document go to few.
TEST(Tolerance, FewReceiversGetTheKeysOfALongDocument) {
  std::vector<std::vector<std::int64_t>> lengths(64, {512, 512, 512, 512, 512, 512, 512, 512});
  lengths[5] = {4096};
  const Workload w = workload(lengths);
  config::Attention attention = automatic();
  attention.tolerance = 1;
  const Plan few = make_plans(attention, std::span(&w, 1), pool(1e9)).front();
  attention.priority = config::Priority::paper;  // fills receivers up to the mean
  const Plan many = make_plans(attention, std::span(&w, 1), pool(1e9)).front();
  EXPECT_LE(imbalance(few), 2.1);
  EXPECT_LT(total_bytes(few), 0.5 * total_bytes(many));
}

TEST(Tolerance, HalvesOfATickHaveOne) {
  const auto parts = halves(workload(heavy_tailed(4, 8192, 5)));
  const std::vector<Plan> plans = make_plans(automatic(), parts, pool(1e9));
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_EQ(plans[0].trials, plans[1].trials);
  EXPECT_EQ(plans[0].trials.size(), 9u);
}

TEST(Tolerance, IsTheSameWheneverItIsDecided) {
  const Workload w = workload(heavy_tailed(8, 8192, 7));
  EXPECT_EQ(plan_on(pool(1e9), w).trials, plan_on(pool(1e9), w).trials);
  EXPECT_EQ(hash(plan_on(pool(1e9), w)), hash(plan_on(pool(1e9), w)));
}

TEST(Tolerance, PlacementsWithoutOneTryNothing) {
  config::Attention attention = automatic();
  attention.placement = config::PlacementKind::colocated;
  EXPECT_TRUE(make_plan(attention, workload({{512}, {16}})).trials.empty());
}

}  // namespace
}  // namespace cadenza::plan::test_tolerance
