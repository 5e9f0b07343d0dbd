// SPDX-License-Identifier: Apache-2.0
// Bytes of K and V that plans move, against the rows that their tasks need, counted one by one.
#include "plan/report/key_bytes.hpp"

#include <gmock/gmock.h>

#include <set>
#include <tuple>

#include "cadenza/plan/report.hpp"
#include "cases.hpp"

namespace cadenza::plan {
namespace {

using config::PlacementKind;
using test::Draw;

/// Every row of K that some query of a task sees, where it does not live.
double rows_one_by_one(const Plan& plan) {
  std::set<std::tuple<Rank, int, std::int64_t, std::int64_t>> rows;
  for (const Stage& stage : plan.stages) {
    for (const PlacedTask& placed : stage.tasks) {
      const Task& task = placed.task;
      const Range heads = key_heads(plan.workload.shape, task.heads);
      for (std::int64_t key = task.k.begin; key < task.k.end; ++key) {
        if (allowed_pairs(task.q, {key, key + 1}, task.band) == 0) continue;
        for (std::int64_t head = heads.begin; head < heads.end; ++head) {
          rows.insert({placed.server, task.document, key, head});
        }
      }
    }
  }
  std::erase_if(rows, [&](const auto& row) {
    return std::ranges::any_of(plan.workload.homes, [&](const Home& home) {
      return home.rank == std::get<0>(row) && home.document == std::get<1>(row) &&
             home.tokens.contains({std::get<2>(row), std::get<2>(row) + 1});
    });
  });
  return static_cast<double>(rows.size());
}

void expect_counted(const Plan& plan) {
  const AttentionShape& shape = plan.workload.shape;
  const double row = 2.0 * shape.head_dim * shape.element_bytes;
  EXPECT_DOUBLE_EQ(key_bytes(plan).needed, rows_one_by_one(plan) * row);
}

TEST(KeyBytes, CadMovesWhatItsServersNeed) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const Plan plan = cad(test::random_workload(draw, 16), 16, 0.05);
    expect_counted(plan);
    EXPECT_DOUBLE_EQ(static_cast<double>(key_bytes(plan).moved), key_bytes(plan).needed);
  }
}

TEST(KeyBytes, PlacementsOfContextGroupsMoveNoLess) {
  for (const PlacementKind placement :
       {PlacementKind::ring, PlacementKind::zigzag, PlacementKind::striped,
        PlacementKind::block_striped, PlacementKind::all_gather, PlacementKind::ulysses}) {
    SCOPED_TRACE(static_cast<int>(placement));
    config::Experiment e = test::experiment(placement, 4, 8, 4);
    e.attention.block = 8;
    const Plan plan = make_plan(e.attention, test::group_workload(e, {{150, 7, 99}}));
    expect_counted(plan);
    EXPECT_GT(key_bytes(plan).needed, 0);
    EXPECT_GE(static_cast<double>(key_bytes(plan).moved), key_bytes(plan).needed);
  }
}

TEST(KeyBytes, AWindowNeedsFewerThanARingPassesOn) {
  config::Experiment e = test::experiment(PlacementKind::zigzag, 4);
  e.attention.kind = config::AttentionKind::window;
  e.attention.window = 20;
  const Plan plan = make_plan(e.attention, test::group_workload(e, {{400}}));
  expect_counted(plan);
  EXPECT_GT(static_cast<double>(key_bytes(plan).moved), 1.5 * key_bytes(plan).needed);
}

/// Rank 1 holds the queries [64, 128), rank 0 the keys before them: one block of queries that keeps
/// a quarter of its pairs needs a quarter of the keys, two blocks of two heads more.
TEST(KeyBytes, OfSparseAttentionExpectsTheRowsOfAnyBlock) {
  Workload w = test::split_document(128);
  w.sparse.block = 64;
  w.density.resize(1);
  Plan plan;
  plan.workload = w;
  const auto needed = [&](std::int64_t block, Range heads) {
    plan.workload.sparse.block = block;
    PlacedTask placed{1, {0, {64, 128}, {0, 64}, heads, Band::causal()}, 0, 0.25};
    plan.stages = {{{}, {placed}}};
    return key_bytes(plan).needed / (2.0 * w.shape.head_dim * w.shape.element_bytes);
  };
  EXPECT_DOUBLE_EQ(needed(64, {0, 1}), 64 * 0.25);
  EXPECT_DOUBLE_EQ(needed(64, {0, 2}), 64 * (1 - 0.75 * 0.75));  // two heads read one of K
  EXPECT_DOUBLE_EQ(needed(64, {0, 4}), 2 * 64 * (1 - 0.75 * 0.75));
  EXPECT_DOUBLE_EQ(needed(32, {0, 1}), 64 * (1 - 0.75 * 0.75));
  plan.workload.order = {2, 16};  // every 16 queries are of another block
  EXPECT_DOUBLE_EQ(needed(64, {0, 1}), 64 * (1 - std::pow(0.75, 4)));
}

TEST(KeyBytes, ReportsSayThem) {
  const std::vector<Plan> plans = {cad(test::workload({{400, 3}, {20}}), 16, 0.0)};
  EXPECT_THAT(to_table(plans), testing::HasSubstr(" sent (K and V moved / needed 1.00); "));
  const std::vector<Plan> still = {cad(test::workload({{40}, {40}}), 16, 0.0)};
  EXPECT_THAT(to_table(still), testing::Not(testing::HasSubstr("needed")));
  Workload sparse = test::workload({{400, 3}, {20}});
  sparse.sparse = {.block = 16, .columns = 16, .slashes = 2};
  for (const std::int64_t length : sparse.lengths) {
    sparse.density.push_back(SparseDensity::of_budgets(sparse.sparse, length));
  }
  EXPECT_THAT(to_table({cad(sparse, 16, 0.0)}),
              testing::HasSubstr("(K and V moved / expected to be needed "));
}

}  // namespace
}  // namespace cadenza::plan
