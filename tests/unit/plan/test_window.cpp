// SPDX-License-Identifier: Apache-2.0
// A mask that no placement knows: a sliding window through placements, validator and reports.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "cadenza/plan/report.hpp"
#include "cadenza/plan/validate.hpp"
#include "cases.hpp"
#include "oracle.hpp"

namespace cadenza::plan {
namespace {

using config::PlacementKind;
using test::Draw;
using test::experiment;
using test::group_workload;

/// Pairs of a document by definition.
std::int64_t window_pairs(std::int64_t length, std::int64_t window) {
  std::int64_t pairs = 0;
  for (std::int64_t i = 0; i < length; ++i) pairs += std::min(i + 1, window);
  return pairs;
}

void expect_valid(const Plan& plan, std::int64_t window) {
  EXPECT_THAT(violations(plan), testing::IsEmpty());
  EXPECT_THAT(mirror_violations(plan, mirror(plan)), testing::IsEmpty());
  if (!plan.workload.queries.empty()) return;
  double cost = 0;
  for (const double of_rank : plan.cost_per_rank) cost += of_rank;
  std::int64_t pairs = 0;
  for (const std::int64_t length : plan.workload.lengths) pairs += window_pairs(length, window);
  const AttentionShape& shape = plan.workload.shape;
  EXPECT_EQ(cost, 4.0 * shape.head_dim * shape.heads * static_cast<double>(pairs));
}

TEST(Window, CadAndColocatedCoverItOnAnyWorkload) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const std::int64_t block = draw.of(std::vector<std::int64_t>{1, 4, 16});
    const std::int64_t window = draw.between(1, 12 * block);
    Workload w = test::random_workload(draw, block);
    w.mask = Mask::window(window);
    config::Attention attention;
    attention.block = block;
    attention.tolerance = draw.of(std::vector<double>{0, 0.05, 0.3});
    attention.split_keys = draw.between(0, 1) == 0;
    attention.bound = config::Bound(draw.between(0, 1));
    attention.priority = config::Priority(draw.between(0, 2));
    for (const Plan& plan : {cad(w, attention), colocated(w)}) {
      expect_valid(plan, window);
      std::int64_t longest = 0;
      for (const std::int64_t length : w.lengths) longest = std::max(longest, length);
      if (longest <= 90) {
        EXPECT_EQ(test::carry_out(plan), "");
      }
    }
  }
}

TEST(Window, EveryContextPlacementCoversIt) {
  for (const PlacementKind placement :
       {PlacementKind::ring, PlacementKind::zigzag, PlacementKind::striped,
        PlacementKind::block_striped, PlacementKind::ulysses, PlacementKind::ulysses_ring,
        PlacementKind::double_ring, PlacementKind::all_gather, PlacementKind::cad}) {
    for (std::uint64_t seed = 0; seed < 25; ++seed) {
      SCOPED_TRACE(static_cast<int>(placement));
      SCOPED_TRACE(seed);
      Draw draw(seed);
      config::Experiment e = experiment(placement, 4);
      const std::int64_t window = draw.between(1, 60);
      e.model.mask = Mask::window(window);
      e.attention.block = draw.between(1, 9);
      e.attention.head_parallel = 2;
      e.attention.inner_ring = 2;
      e.attention.shard_unit = config::ShardUnit(draw.between(0, 2));
      std::vector<std::vector<std::int64_t>> groups(static_cast<std::size_t>(draw.between(1, 2)));
      for (auto& list : groups) {
        for (std::int64_t n = draw.between(1, 4); n > 0; --n) list.push_back(draw.between(1, 70));
      }
      const Plan plan = make_plan(e.attention, group_workload(e, groups));
      expect_valid(plan, window);
      EXPECT_EQ(test::carry_out(plan), "");
    }
  }
}

TEST(Window, HalvesOfAWorkloadCoverIt) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    Workload w = test::random_workload(draw, 4);
    w.mask = Mask::window(draw.between(1, 40));
    for (const Workload& half : halves(w)) expect_valid(cad(half, 4, 0.05), 0);
  }
}

// What no query of a server sees does not travel to it.
TEST(Window, MovesOnlyKeysThatAreSeen) {
  constexpr std::int64_t kLength = 65536;
  Workload w = test::workload({{kLength}, {}, {}, {}});
  const Plan causal = cad(w, 128, 0.02);
  w.mask = Mask::window(1024);
  const Plan window = cad(w, 128, 0.02);
  expect_valid(window, 1024);
  EXPECT_LE(imbalance(window), 1.021);
  const auto keys_sent = [](const Plan& plan) {
    std::int64_t rows = 0;
    for (const Stage& stage : plan.stages) {
      for (const Move& move : stage.moves) rows += move.what == Tensor::k ? move.tokens.size() : 0;
    }
    return rows;
  };
  EXPECT_LT(keys_sent(window), kLength + 16 * 1024);  // queries elsewhere and a window before each
  EXPECT_GT(keys_sent(causal), keys_sent(window));
}

bool same_pairs(const Task& task, Band other) {
  const std::int64_t both = allowed_pairs(task.q, task.k, common(task.band, other));
  return both == allowed_pairs(task) && both == allowed_pairs(task.q, task.k, other);
}

/// Gives every task in turn another band, and the price of that band: the price must not tell.
void expect_fault(const Plan& plan, const std::function<void(Band&)>& plant) {
  int planted = 0;
  for (std::size_t i = 0; i < plan.stages[0].tasks.size(); ++i) {
    Plan broken = plan;
    PlacedTask& placed = broken.stages[0].tasks[i];
    plant(placed.task.band);
    if (same_pairs(plan.stages[0].tasks[i].task, placed.task.band)) continue;
    placed.cost = forward_flops(placed.task, plan.workload.shape.head_dim);
    add_totals(broken);
    EXPECT_THAT(violations(broken), testing::Contains(testing::StartsWith("coverage:")));
    ++planted;
  }
  EXPECT_GT(planted, 0);
}

TEST(Window, AnotherBandThanTheMasksIsAFault) {
  Workload w = test::workload({{300}, {200, 150}});
  w.mask = Mask::window(64);
  const Plan plan = cad(w, 16, 0.05);
  expect_valid(plan, 64);
  ASSERT_FALSE(plan.stages[0].tasks.empty());
  expect_fault(plan, [](Band& band) { band.low -= 1; });  // too wide
  expect_fault(plan, [](Band& band) { band.low += 1; });
  expect_fault(plan, [](Band& band) { band.high += 1; });
  expect_fault(plan, [](Band& band) { band.high -= 1; });
  expect_fault(plan, [](Band& band) { band = Band::causal(); });
  expect_fault(plan, [](Band& band) { band = {band.low - 1, band.high - 1}; });  // as many pairs
  // A plan for another mask.
  Plan other = plan;
  other.workload.mask = Mask::window(63);
  EXPECT_THAT(violations(other), testing::Contains(testing::StartsWith("coverage:")));
  EXPECT_THAT(mirror_violations(plan, mirror(other)), testing::Not(testing::IsEmpty()));
  EXPECT_NE(hash(other), hash(plan));
}

TEST(Window, ReportsDrawBothEdges) {
  Workload w = test::workload({{160}}, 0);
  w.mask = Mask::window(20);
  const std::vector<Plan> plans = {colocated(w)};
  const auto json = nlohmann::json::parse(to_json(plans, {}));
  const auto& task = json["plans"][0]["stages"][0]["tasks"][0];
  EXPECT_EQ(task["rule"], "band");
  EXPECT_EQ(task["low"], -19);
  EXPECT_EQ(task["high"], 0);
  EXPECT_FALSE(task.contains("diagonal"));
  // 16 cells of 10 tokens: a query in the middle of a cell sees two of them.
  EXPECT_THAT(to_table(plans, {}), testing::HasSubstr("\n  ..............00"));
  // The corner, the foot of the window, both ends of the document's last query.
  const double scale = 224.0 / 160;
  EXPECT_THAT(to_svg(plans, {}),
              testing::HasSubstr(fmt::format("{:.1f},", 24 + scale * (160 - 19))));
}

}  // namespace
}  // namespace cadenza::plan
