// SPDX-License-Identifier: Apache-2.0
// Bytes of K and V that plans move, against the rows that their tasks need, counted one by one.
#include "plan/report/summary.hpp"

#include <gmock/gmock.h>

#include <array>
#include <set>
#include <tuple>

#include "cadenza/plan/report.hpp"
#include "cadenza/plan/validate.hpp"
#include "cases.hpp"
#include "oracle.hpp"
#include "unit/sanitized.hpp"

namespace cadenza::plan::test_key_bytes {
namespace {

using config::PlacementKind;
using test::Draw;

/// Every row of K that some query of a task sees, where it does not live.
double rows_one_by_one(const Plan& plan) {
  std::set<std::tuple<Rank, int, std::int64_t, std::int64_t>> rows;
  for (const Stage& stage : plan.stages) {
    for (const PlacedTask& placed : stage.tasks) {
      const Task& task = placed.task;
      const Range heads = plan.workload.shape.key_heads(task.heads);
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

constexpr auto kContextPlacements = std::to_array<PlacementKind>(
    {PlacementKind::ring, PlacementKind::zigzag, PlacementKind::striped,
     PlacementKind::block_striped, PlacementKind::double_ring, PlacementKind::dynamic,
     PlacementKind::ulysses, PlacementKind::ulysses_ring, PlacementKind::all_gather,
     PlacementKind::cad});

/// Rings pass keys through ranks that do not read them.
bool passes_on(PlacementKind placement) {
  return placement != PlacementKind::all_gather && placement != PlacementKind::cad &&
         placement != PlacementKind::ulysses;
}

/// Any layout of one to two context groups, with any kind of attention.
config::Experiment any_experiment(Draw& draw, PlacementKind placement) {
  const std::int64_t slices = draw.between(1, 2);
  const bool head_split = placement == PlacementKind::ulysses;
  const std::int64_t context = head_split ? draw.between(2, 4) : 2 * slices * draw.between(1, 2);
  config::Experiment e = test::experiment(placement, context, 2 * context, context);
  e.attention.kind = draw.any<config::AttentionKind>();
  e.attention.window = draw.between(1, 60);
  e.attention.sinks = draw.between(0, 1) * draw.between(0, 30);
  e.attention.prefix = draw.between(1, 60);
  e.attention.chunk = draw.between(2, 62);
  e.attention.local = draw.between(0, e.attention.chunk - 1);
  e.attention.cap = draw.any<config::ChunkCap>();
  e.attention.sparse.block = 16;
  e.attention.sparse.stride = 4;
  e.attention.sparse.dense_below = 30;
  e.attention.block = draw.between(1, 9);
  e.attention.head_parallel = 2;
  e.attention.inner_ring = draw.between(1, 2);
  e.attention.sharding = draw.any<config::Sharding>();
  e.attention.shard_unit = draw.any<config::ShardUnit>();
  return e;
}

// Every row that comes to a rank is read there or passed on (carry_out), whatever the mask; without
// passing on, K and V move as often as they are needed. The rings of cad pass on where that is
// little.
TEST(KeyBytes, KeysThatNobodySeesDoNotTravel) {
  for (const PlacementKind placement : kContextPlacements) {
    SCOPED_TRACE(static_cast<int>(placement));
    for (std::uint64_t seed = 0; seed < (testing::kSanitized ? 3 : 12); ++seed) {
      SCOPED_TRACE(seed);
      Draw draw(seed);
      const config::Experiment e = any_experiment(draw, placement);
      std::vector<std::vector<std::int64_t>> groups(static_cast<std::size_t>(draw.between(1, 2)));
      for (auto& list : groups) {
        for (std::int64_t n = draw.between(1, 3); n > 0; --n) list.push_back(draw.between(1, 70));
      }
      const Workload whole = test::group_workload(e, groups);
      std::vector<Workload> parts = {whole};
      if (whole.order.natural() && whole.mask.is_causal() && whole.sparse.block == 0) {
        for (const Workload& half : halves(whole)) parts.push_back(half);
      }
      for (const Workload& part : parts) {
        const Plan plan = make_plan(e.attention, part);
        EXPECT_EQ(test::carry_out(plan), "");
        const auto moved = static_cast<double>(key_bytes(plan).moved);
        const AttentionShape& shape = plan.workload.shape;
        const double read = rows_one_by_one(plan) * 2.0 * shape.head_dim * shape.element_bytes;
        if (passes_on(placement)) {
          EXPECT_GE(moved, read);
        } else if (placement == PlacementKind::cad) {
          EXPECT_GE(moved, read);
          EXPECT_LE(moved, read / 0.7) << "a ring with more skips who does not read them";
        } else {
          EXPECT_EQ(moved, read);  // with sparse attention by any query of a dense one
        }
        if (part.sparse.block == 0) expect_counted(plan);
      }
    }
  }
}

// As the collective of published systems brings them: every rank gets the rows of all others,
// also under a window; gradients go back of those that it reads.
TEST(KeyBytes, GatherAllMovesTheKeysOfTheGroup) {
  config::Experiment e = test::experiment(PlacementKind::all_gather, 8, 8, 4);
  e.attention.kind = config::AttentionKind::window;
  e.attention.window = 128;
  e.attention.gather = config::Gather::all;
  const std::vector<std::vector<std::int64_t>> groups = {{65536, 40, 7}, {1000}};
  const Plan plan = make_plan(e.attention, test::group_workload(e, groups));
  EXPECT_THAT(violations(plan), ::testing::IsEmpty());
  EXPECT_THAT(mirror_violations(plan, mirror(plan)), ::testing::IsEmpty());
  EXPECT_EQ(key_bytes(plan).moved, (65536 + 40 + 7 + 1000) * 7 * 256);
  e.attention.gather = config::Gather::seen;
  const Plan seen = make_plan(e.attention, test::group_workload(e, groups));
  EXPECT_EQ(key_bytes(seen).needed, key_bytes(plan).needed);
  EXPECT_LT(key_bytes(seen).moved * 100, key_bytes(plan).moved);
}

// 65,536 tokens of 256 bytes on 8 ranks, each of which sees 127 keys of the rank before it.
TEST(KeyBytes, OfAWindow) {
  const auto moved = [](PlacementKind placement) {
    config::Experiment e = test::experiment(placement, 8, 8, 4);
    e.attention.kind = config::AttentionKind::window;
    e.attention.window = 128;
    e.attention.sharding = config::Sharding::contiguous;
    const Plan plan = make_plan(e.attention, test::group_workload(e, {{65536}}));
    std::int64_t gradients = 0;
    for (const Stage& stage : mirror(plan).stages) {
      for (const Move& move : stage.moves) gradients += is_result(move.what) ? move.bytes : 0;
    }
    EXPECT_EQ(static_cast<double>(gradients), key_bytes(plan).needed);
    return key_bytes(plan).moved;
  };
  constexpr std::int64_t kSeen = 127 * 256;
  for (const PlacementKind placement : {PlacementKind::all_gather, PlacementKind::ring}) {
    EXPECT_EQ(moved(placement), 7 * kSeen);
  }
  // Chunk r reads of chunk r - 1, one hop away, chunk 15 - r of chunk 14 - r, seven hops away.
  EXPECT_EQ(moved(PlacementKind::zigzag), (7 + 7 * 7) * kSeen);
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
  EXPECT_THAT(to_table(plans), ::testing::HasSubstr(" sent (K and V moved / needed 1.00); "));
  const std::vector<Plan> still = {cad(test::workload({{40}, {40}}), 16, 0.0)};
  EXPECT_THAT(to_table(still), ::testing::Not(::testing::HasSubstr("needed")));
  Workload sparse = test::workload({{400, 3}, {20}});
  sparse.sparse = {.block = 16, .columns = 16, .slashes = 2};
  for (const std::int64_t length : sparse.lengths) {
    sparse.density.push_back(SparseDensity::of_budgets(sparse.sparse, length));
  }
  EXPECT_THAT(to_table({cad(sparse, 16, 0.0)}),
              ::testing::HasSubstr("(K and V moved / expected to be needed "));
}

}  // namespace
}  // namespace cadenza::plan::test_key_bytes
