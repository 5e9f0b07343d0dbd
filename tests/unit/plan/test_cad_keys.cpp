// SPDX-License-Identifier: Apache-2.0
// attention.split_keys.
#include <gmock/gmock.h>

#include <set>

#include "cadenza/plan/predict.hpp"
#include "cadenza/plan/validate.hpp"
#include "cases.hpp"
#include "oracle.hpp"
#include "plan/cad/tiles.hpp"

namespace cadenza::plan::test_cad_keys {
namespace {

using test::Draw;
using test::heavy_tailed;
using test::total_bytes;
using test::workload;

Plan split(const Workload& w, std::int64_t block, double tolerance) {
  config::Attention attention;
  attention.block = block;
  attention.tolerance = tolerance;
  return cad(w, attention);
}

double predicted(const Plan& plan) {
  return predict(plan, cost::nominal_pool(plan.workload.shape.head_dim)).predicted_seconds;
}

std::set<Rank> busy(const Plan& plan) {
  std::set<Rank> ranks;
  for (const Stage& stage : plan.stages) {
    for (const PlacedTask& p : stage.tasks) ranks.insert(p.server);
  }
  return ranks;
}

void expect_valid(const Plan& plan) {
  EXPECT_THAT(violations(plan), ::testing::IsEmpty());
  EXPECT_THAT(mirror_violations(plan, mirror(plan)), ::testing::IsEmpty());
}

TEST(SplitKeys, NeverRaisesThePlansCost) {
  int cheaper = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const std::int64_t block = draw.of<std::int64_t>({8, 16, 128});
    const Workload w = test::random_workload(draw, block);
    const double tolerance = draw.of<double>({0.0, 0.1, 0.5});
    const Plan whole = cad(w, block, tolerance);
    const Plan plan = split(w, block, tolerance);
    expect_valid(plan);
    EXPECT_LE(predicted(plan), predicted(whole) * (1 + 1e-12));
    EXPECT_LE(imbalance(plan), imbalance(whole) * (1 + 1e-12));
    cheaper += predicted(plan) < predicted(whole);
    EXPECT_EQ(hash(plan), hash(split(w, block, tolerance)));
  }
  EXPECT_GT(cheaper, 30);
}

TEST(SplitKeys, ComputesEveryPairOnceWhenCarriedOut) {
  for (std::uint64_t seed = 2000; seed < 2060; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const Workload w = test::random_workload(draw, 2);
    EXPECT_EQ(test::carry_out(split(w, 2, 0.05)), "");
  }
}

TEST(SplitKeys, GivesWorkToMoreServersThanQueryBlocks) {
  const Workload w = workload({{512}, {}, {}, {}, {}, {}, {}, {}});
  const Plan whole = cad(w, 128, 0.0);
  EXPECT_EQ(busy(whole).size(), 4U);
  const Plan plan = split(w, 128, 0.0);
  expect_valid(plan);
  EXPECT_GT(busy(plan).size(), 4U);
  EXPECT_LT(imbalance(plan), imbalance(whole));
  EXPECT_LT(predicted(plan), predicted(whole));
}

// Where the load of the slowest server leaves room, tiles need fewer rows than head-tail pairs.
TEST(SplitKeys, LongDocumentsMoveFewerBytes) {
  for (int dedicated : {0, 4}) {
    double whole_bytes = 0;
    double bytes = 0;
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      std::vector<std::vector<std::int64_t>> documents = heavy_tailed(8, 32768, seed);
      documents[0] = {32768};
      documents[1] = {30000};
      const Workload w = workload(documents, dedicated, {32, 8, 128, 2, 4});
      const Plan plan = split(w, 128, 0.1);
      const Plan whole = cad(w, 128, 0.1);
      expect_valid(plan);
      EXPECT_LE(imbalance(plan), imbalance(whole) * (1 + 1e-12));
      EXPECT_LE(predicted(plan), predicted(whole) * (1 + 1e-12));
      bytes += total_bytes(plan);
      whole_bytes += total_bytes(whole);
    }
    EXPECT_LE(bytes, (dedicated > 0 ? 1.0 : 0.92) * whole_bytes) << dedicated;
  }
}

// The tiling alone: a partition of the tile, areas near the shares.
TEST(Tiling, CoversTheTileOnceInSharesOfItsArea) {
  Workload w = workload({{1}, {}});
  const Homes homes(w);
  const Residency residency(w, homes);
  const Transfers transfers(residency, 2);
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const Weights mask(seed % 2 == 0 ? Mask{} : Mask::window(draw.between(1, 400)));
    w.mask = mask;
    const std::int64_t end = draw.between(1, 400);
    const Tile whole{0, {draw.between(0, end - 1), end}, {0, draw.between(1, end)}};
    std::vector<Share> shares;
    for (int i = static_cast<int>(draw.between(1, 6)); i > 0; --i) shares.push_back({i, 10 * i});
    std::vector<Tile> tiles;
    divide(mask, whole, shares, 1, transfers, tiles);
    Weight total = 0;
    for (const Share& share : shares) total += share.pairs;
    Weight area = 0;
    for (std::size_t i = 0; i < tiles.size(); ++i) {
      area += tiles[i].pairs(mask);
      EXPECT_TRUE(whole.q.contains(tiles[i].q) && whole.k.contains(tiles[i].k));
      for (std::size_t j = 0; j < i; ++j) {
        EXPECT_FALSE(tiles[i].q.overlaps(tiles[j].q) && tiles[i].k.overlaps(tiles[j].k));
      }
      const double share = 10.0 * tiles[i].server / static_cast<double>(total);
      EXPECT_NEAR(static_cast<double>(tiles[i].pairs(mask)),
                  share * static_cast<double>(whole.pairs(mask)), 3.0 * 400);
    }
    EXPECT_EQ(area, whole.pairs(mask));
  }
}

}  // namespace
}  // namespace cadenza::plan::test_cad_keys
