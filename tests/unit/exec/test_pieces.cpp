// SPDX-License-Identifier: Apache-2.0
// Which rows a rank holds, and when: rows at home, memory that is shared over time, pieces of a
// ring.
#include <gmock/gmock.h>

#include "cadenza/plan/placement.hpp"
#include "exec/memory/arena.hpp"
#include "exec/memory/pieces.hpp"
#include "unit/plan/cases.hpp"

namespace cadenza::exec {
namespace {

using config::PlacementKind;
using plan::test::Draw;

TEST(Arena, WhatLivesAtOtherTimesSharesAPlace) {
  Arena arena;
  EXPECT_EQ(arena.place({0, 1, 10}), 0);
  EXPECT_EQ(arena.place({1, 2, 5}), 10);
  EXPECT_EQ(arena.place({2, 3, 10}), 0);
  EXPECT_EQ(arena.place({2, 2, 4}), 15);
  EXPECT_EQ(arena.place({3, 3, 7}), 10);
  EXPECT_EQ(arena.size(), 19);
}

TEST(Arena, AGapThatIsLargeEnoughIsUsed) {
  Arena arena;
  arena.place({0, 0, 6});
  arena.place({0, 5, 4});
  EXPECT_EQ(arena.place({1, 2, 6}), 0);
  EXPECT_EQ(arena.place({3, 4, 7}), 10) << "larger than the gap";
  EXPECT_EQ(arena.place({3, 4, 0}), 0);
  EXPECT_EQ(arena.size(), 17);
}

TEST(Arena, NothingThatLivesAtTheSameTimeOverlaps) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Draw draw(seed);
    Arena arena;
    std::vector<std::pair<Lifetime, std::int64_t>> placed;
    for (int i = 0; i < 40; ++i) {
      const auto first = static_cast<int>(draw.between(-1, 9));
      const Lifetime life{first, first + static_cast<int>(draw.between(0, 4)), draw.between(0, 30)};
      const std::int64_t offset = arena.place(life);
      EXPECT_LE(offset + life.size, arena.size());
      for (const auto& [other, at] : placed) {
        const bool together = other.first <= life.last && life.first <= other.last;
        const bool apart = offset + life.size <= at || at + other.size <= offset;
        EXPECT_TRUE(!together || apart || life.size == 0 || other.size == 0);
      }
      placed.emplace_back(life, offset);
    }
  }
}

program::TickPlans plans_of(const plan::Plan& forward, int part = 0) {
  program::TickPlans plans;
  plans.half = part;
  plans.forward = forward;
  plans.backward = plan::mirror(forward);
  program::add_traffic(plans);
  return plans;
}

TEST(HomeRows, PiecesLieInTheOrderOfTheHomes) {
  const auto plans = plans_of(plan::colocated(plan::test::workload({{5, 1}, {7, 2, 4}})));
  const HomeRows home = home_rows(plans, 1, 1);
  ASSERT_EQ(home.pieces.size(), 3u);
  EXPECT_EQ(home.pieces[1].document, 3);
  EXPECT_EQ(home.pieces[1].row, 7);
  EXPECT_EQ(home.pieces[2].row, 9);
  EXPECT_EQ(home.halves[0], (Range{0, 13}));
  EXPECT_TRUE(home.halves[1].empty());
  EXPECT_EQ(home.rows(), 13);
}

TEST(HomeRows, AreNoneWithoutDocuments) {
  const auto plans = plans_of(plan::colocated(plan::test::workload({{5}, {}})));
  EXPECT_EQ(home_rows(plans, 1, 4).rows(), 0);
}

TEST(HomeRows, OfBothHalvesAreTheSameAndEachIsAligned) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Draw draw(seed);
    plan::Workload whole = plan::test::random_workload(draw, 16);
    const auto align = static_cast<int>(draw.between(1, 4));
    const auto halves = plan::halves(whole);
    const auto first = plans_of(plan::colocated(halves[0]), 0);
    const auto second = plans_of(plan::colocated(halves[1]), 1);
    for (Rank rank = 0; rank < whole.ranks; ++rank) {
      const HomeRows a = home_rows(first, rank, align);
      const HomeRows b = home_rows(second, rank, align);
      EXPECT_EQ(a.halves, b.halves);
      EXPECT_EQ(a.halves[0].begin, 0);
      EXPECT_EQ(a.halves[1].begin, a.halves[0].end);
      std::int64_t tokens = 0;
      ASSERT_EQ(a.pieces.size(), b.pieces.size());
      for (std::size_t i = 0; i < a.pieces.size(); ++i) {
        EXPECT_EQ(a.pieces[i].row, b.pieces[i].row);
        EXPECT_EQ(a.pieces[i].tokens, b.pieces[i].tokens);
        tokens += a.pieces[i].tokens.size();
      }
      for (const Range& half : a.halves) EXPECT_EQ(half.size() % align, 0);
      EXPECT_LT(a.rows(), tokens + 2 * align);
    }
  }
}

constexpr std::int64_t kEach = 32;  // tokens per rank

plan::Plan ring_of(int ranks, config::Inputs inputs) {
  config::Experiment e = plan::test::experiment(PlacementKind::ring, ranks);
  e.attention.inputs = inputs;
  return plan::make_plan(e.attention, plan::test::group_workload(e, {{ranks * kEach}}));
}

std::int64_t key_rows(const program::TickPlans& plans, Rank rank) {
  return Pieces(plans, rank, home_rows(plans, rank, 1), true).workspace_rows();
}

TEST(Pieces, ARingOfAnyLengthHasTheMemoryOfOneHop) {
  constexpr int kKeyHeads = 2;
  for (const int ranks : {2, 4, 8}) {
    const auto plans = plans_of(ring_of(ranks, config::Inputs::resend));
    // Keys of a hop are unpacked when the tasks of the hop before have run: no second buffer.
    EXPECT_EQ(key_rows(plans, ranks - 1), kEach * kKeyHeads);
  }
}

TEST(Pieces, ARingThatKeepsItsInputsHoldsAllKeys) {
  constexpr int kKeyHeads = 2;
  const auto plans = plans_of(ring_of(4, config::Inputs::keep));
  ASSERT_TRUE(plans.forward.keeps_inputs);
  EXPECT_EQ(key_rows(plans, 3), 3 * kEach * kKeyHeads);
}

TEST(Pieces, WhatTouchesArrivesAsOnePiece) {
  const auto plans = plans_of(plan::cad(plan::test::workload({{2048}, {16}}), 64, 0.02));
  const Pieces queries(plans, 1, home_rows(plans, 1, 1), false);
  std::int64_t rows = 0;
  Range last{-1, -1};
  queries.for_each(0, {0, 2048}, {0, 4}, Pieces::kAnyStage, [&](const RowPiece& piece) {
    EXPECT_FALSE(piece.home);
    EXPECT_GT(piece.tokens.begin, last.end);
    last = piece.tokens;
    rows += piece.tokens.size() * piece.heads.size();
  });
  EXPECT_GT(rows, 0);
  EXPECT_EQ(rows, queries.workspace_rows());
}

TEST(Pieces, ADocumentOnNoRankHasNone) {
  const auto plans = plans_of(plan::colocated(plan::test::workload({{20}, {30}})));
  const Pieces keys(plans, 0, home_rows(plans, 0, 1), true);
  int found = 0;
  const auto count = [&](const RowPiece&) { ++found; };
  keys.for_each(1, {0, 30}, {0, 2}, Pieces::kAnyStage, count);
  EXPECT_EQ(found, 0);
  keys.for_each(0, {0, 20}, {0, 2}, 0, count);
  EXPECT_EQ(found, 1);
  EXPECT_EQ(keys.workspace_rows(), 0);
}

}  // namespace
}  // namespace cadenza::exec
