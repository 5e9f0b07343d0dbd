// SPDX-License-Identifier: Apache-2.0
// Masks, which no placement knows, through placements, validator and reports.
#include <gmock/gmock.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "cadenza/base/error.hpp"
#include "cadenza/plan/report.hpp"
#include "cadenza/plan/validate.hpp"
#include "cases.hpp"
#include "oracle.hpp"
#include "unit/sanitized.hpp"

namespace cadenza::plan::test_masks {
namespace {

using config::AttentionKind;
using config::PlacementKind;
using test::Draw;
using test::experiment;
using test::group_workload;

/// Pairs of a document one by one.
std::int64_t pairs_of(const Mask& mask, std::int64_t length) {
  std::int64_t pairs = 0;
  for (std::int64_t i = 0; i < length; ++i) pairs += mask.pairs({i, i + 1}, {0, length});
  return pairs;
}

void expect_valid(const Plan& plan) {
  EXPECT_THAT(violations(plan), ::testing::IsEmpty());
  EXPECT_THAT(mirror_violations(plan, mirror(plan)), ::testing::IsEmpty());
  if (!plan.workload.queries.empty()) return;
  double cost = 0;
  for (const double of_rank : plan.cost_per_rank) cost += of_rank;
  std::int64_t pairs = 0;
  for (const std::int64_t length : plan.workload.lengths) {
    pairs += pairs_of(plan.workload.mask, length);
  }
  const AttentionShape& shape = plan.workload.shape;
  EXPECT_EQ(cost, 4.0 * shape.head_dim * shape.heads * static_cast<double>(pairs));
}

/// Any kind of mask, in numbers up to `most` tokens.
config::Attention random_kind(Draw& draw, std::int64_t most) {
  config::Attention attention;
  attention.kind =
      draw.of(std::vector{AttentionKind::window, AttentionKind::prefix, AttentionKind::dual_chunk});
  attention.window = draw.between(1, most);
  attention.sinks = draw.between(0, 1) * draw.between(0, most / 2);
  attention.prefix = draw.between(1, most);
  attention.chunk = draw.between(2, most + 2);
  attention.local = draw.between(0, attention.chunk - 1);
  attention.cap = draw.any<config::ChunkCap>();
  return attention;
}

TEST(Masks, CadAndColocatedCoverThemOnAnyWorkload) {
  for (std::uint64_t seed = 0; seed < (testing::kSanitized ? 60 : 300); ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const std::int64_t block = draw.of(std::vector<std::int64_t>{1, 4, 16});
    Workload w = test::random_workload(draw, block);
    config::Attention attention = random_kind(draw, 12 * block);
    w.mask = attention.mask();
    attention.block = block;
    attention.tolerance = draw.of(std::vector<double>{0, 0.05, 0.3});
    attention.split_keys = draw.between(0, 1) == 0;
    attention.bound = draw.any<config::Bound>();
    attention.priority = draw.any<config::Priority>();
    for (const Plan& plan : {cad(w, attention), colocated(w)}) {
      expect_valid(plan);
      std::int64_t longest = 0;
      for (const std::int64_t length : w.lengths) longest = std::max(longest, length);
      if (longest <= 90) {
        EXPECT_EQ(test::carry_out(plan), "");
      }
    }
  }
}

TEST(Masks, EveryContextPlacementCoversThem) {
  for (const PlacementKind placement :
       {PlacementKind::ring, PlacementKind::zigzag, PlacementKind::striped,
        PlacementKind::block_striped, PlacementKind::ulysses, PlacementKind::ulysses_ring,
        PlacementKind::double_ring, PlacementKind::dynamic, PlacementKind::all_gather,
        PlacementKind::cad}) {
    for (std::uint64_t seed = 0; seed < (testing::kSanitized ? 8 : 60); ++seed) {
      SCOPED_TRACE(static_cast<int>(placement));
      SCOPED_TRACE(seed);
      Draw draw(seed);
      config::Experiment e = experiment(placement, 4);
      e.attention = random_kind(draw, 60);
      e.attention.placement = placement;
      e.attention.overlap = config::Overlap::none;
      e.attention.block = draw.between(1, 9);
      e.attention.head_parallel = 2;
      e.attention.inner_ring = draw.between(1, 2);
      e.attention.shard_unit = draw.any<config::ShardUnit>();
      std::vector<std::vector<std::int64_t>> groups(static_cast<std::size_t>(draw.between(1, 2)));
      for (auto& list : groups) {
        for (std::int64_t n = draw.between(1, 4); n > 0; --n) list.push_back(draw.between(1, 70));
      }
      const Plan plan = make_plan(e.attention, group_workload(e, groups));
      expect_valid(plan);
      EXPECT_EQ(test::carry_out(plan), "");
    }
  }
}

TEST(Masks, HalvesOfAWorkloadCoverThem) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    Workload w = test::random_workload(draw, 4);
    w.mask = random_kind(draw, 40).mask();
    if (!w.mask.is_causal()) {
      EXPECT_THROW(halves(w), Error);
      continue;
    }
    for (const Workload& half : halves(w)) expect_valid(cad(half, 4, 0.05));
  }
}

// What no query of a server sees does not travel to it.
TEST(Window, MovesOnlyKeysThatAreSeen) {
  constexpr std::int64_t kLength = 65536;
  Workload w = test::workload({{kLength}, {}, {}, {}});
  const Plan causal = cad(w, 128, 0.02);
  w.mask = Mask::window(1024);
  const Plan window = cad(w, 128, 0.02);
  expect_valid(window);
  EXPECT_LE(imbalance(window), 1.021);
  w.mask = Mask::window(1024, 64);
  const Plan sinks = cad(w, 128, 0.02);
  expect_valid(sinks);
  EXPECT_LE(imbalance(sinks), 1.021);
  const auto keys_sent = [](const Plan& plan) {
    std::int64_t rows = 0;
    for (const Stage& stage : plan.stages) {
      for (const Move& move : stage.moves) rows += move.what == Tensor::k ? move.tokens.size() : 0;
    }
    return rows;
  };
  EXPECT_LT(keys_sent(window), kLength + 16 * 1024);  // queries elsewhere and a window before each
  EXPECT_GT(keys_sent(causal), keys_sent(window));
  EXPECT_LT(keys_sent(sinks), kLength + 16 * 1024 + 4 * 64);
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
    EXPECT_THAT(violations(broken), ::testing::Contains(::testing::StartsWith("coverage:")));
    ++planted;
  }
  EXPECT_GT(planted, 0);
}

TEST(Window, AnotherBandThanTheMasksIsAFault) {
  Workload w = test::workload({{300}, {200, 150}});
  w.mask = Mask::window(64);
  const Plan plan = cad(w, 16, 0.05);
  expect_valid(plan);
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
  EXPECT_THAT(violations(other), ::testing::Contains(::testing::StartsWith("coverage:")));
  EXPECT_THAT(mirror_violations(plan, mirror(other)), ::testing::Not(::testing::IsEmpty()));
  EXPECT_NE(hash(other), hash(plan));
}

TEST(Masks, OtherPositionsAreAFault) {
  Workload w = test::workload({{300}, {200, 150}});
  w.mask = Mask::dual_chunk({40, 60, 60});
  const Plan plan = cad(w, 16, 0.05);
  expect_valid(plan);
  const auto plant = [&](auto&& change) {
    for (std::size_t i = 0; i < plan.stages[0].tasks.size(); ++i) {
      Plan broken = plan;
      change(broken.stages[0].tasks[i].task.q_positions);
      EXPECT_THAT(violations(broken), ::testing::Contains(::testing::StartsWith("coverage:")));
    }
  };
  plant([](PositionMap& map) { map.first += 1; });
  plant([](PositionMap& map) { map.step = 1 - map.step; });
  Plan other = plan;
  other.workload.mask = Mask::dual_chunk({40, 61, 60});
  EXPECT_THAT(violations(other), ::testing::Contains(::testing::StartsWith("coverage:")));
  EXPECT_NE(hash(other), hash(plan));
}

TEST(Window, ReportsHaveBothEdges) {
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
  EXPECT_THAT(to_table(plans, {}), ::testing::HasSubstr("\n  ..............00"));
}

}  // namespace
}  // namespace cadenza::plan::test_masks
