// SPDX-License-Identifier: Apache-2.0
#include "cadenza/program/layout.hpp"

#include <gmock/gmock.h>

#include <map>
#include <set>

namespace cadenza::program::test_layout {
namespace {

config::Experiment experiment(int data, int pipeline, int tensor, int context, int servers,
                              config::PlacementKind placement) {
  config::Experiment e;
  e.parallel.data = data;
  e.parallel.pipeline = pipeline;
  e.parallel.tensor = tensor;
  e.parallel.context = context;
  e.attention.servers = servers;
  e.attention.placement = placement;
  return e;
}

TEST(Layout, TensorChangesFastestThenContextDataAndPipeline) {
  const Layout layout(experiment(2, 2, 2, 3, 0, config::PlacementKind::ring));
  EXPECT_EQ(layout.coordinates(0), (Coordinates{0, 0, 0, 0}));
  EXPECT_EQ(layout.coordinates(1), (Coordinates{0, 0, 1, 0}));
  EXPECT_EQ(layout.coordinates(2), (Coordinates{0, 0, 0, 1}));
  EXPECT_EQ(layout.coordinates(6), (Coordinates{1, 0, 0, 0}));
  EXPECT_EQ(layout.coordinates(12), (Coordinates{0, 1, 0, 0}));
  for (Rank rank = 0; rank < layout.trainers(); ++rank) {
    EXPECT_EQ(layout.rank(layout.coordinates(rank)), rank);
  }
}

TEST(Layout, PoolsPartTheWorldAndNumberTheirRanksFromZero) {
  using config::PlacementKind;
  for (const PlacementKind placement : {PlacementKind::cad, PlacementKind::ring}) {
    for (int pipeline = 1; pipeline <= 3; ++pipeline) {
      for (int tensor = 1; tensor <= 2; ++tensor) {
        const int servers = placement == PlacementKind::cad ? 2 * tensor : 0;
        const Layout layout(experiment(2, pipeline, tensor, 2, servers, placement));
        std::map<int, std::set<Rank>> members;
        for (Rank rank = 0; rank < layout.ranks(); ++rank) {
          const int pool = layout.pool_of(rank);
          EXPECT_EQ(layout.world_rank(pool, layout.in_pool(rank)), rank);
          EXPECT_TRUE(members[pool].insert(layout.in_pool(rank)).second);
        }
        EXPECT_EQ(members.size(), static_cast<std::size_t>(layout.pools()));
        for (const auto& [pool, ranks] : members) {
          EXPECT_EQ(ranks.size(), static_cast<std::size_t>(layout.pool_size()));
          EXPECT_EQ(*ranks.begin(), 0);
          EXPECT_EQ(*ranks.rbegin(), layout.pool_size() - 1);
        }
      }
    }
  }
}

TEST(Layout, CadPoolsStagesAndARingDoesNot) {
  EXPECT_TRUE(Layout(experiment(1, 2, 1, 1, 0, config::PlacementKind::cad)).pools_stages());
  EXPECT_FALSE(Layout(experiment(1, 2, 1, 1, 0, config::PlacementKind::ring)).pools_stages());
}

TEST(Layout, DedicatedServersServeAloneUnlessTrainersHelp) {
  config::Experiment e = experiment(2, 1, 1, 1, 1, config::PlacementKind::cad);
  const Layout alone(e);
  EXPECT_FALSE(alone.serves(0) || alone.serves(1));
  EXPECT_TRUE(alone.serves(2));
  e.attention.mixed = true;
  EXPECT_TRUE(Layout(e).serves(0) && Layout(e).serves(2));
  e.attention.servers = 0;
  e.attention.mixed = false;
  EXPECT_TRUE(Layout(e).serves(0) && Layout(e).serves(1));
}

TEST(Layout, ServersOfATensorGroupAreNeighboursAndServeTheirOwnHeads) {
  const Layout layout(experiment(2, 1, 2, 1, 4, config::PlacementKind::cad));
  EXPECT_EQ(layout.ranks(), 8);
  EXPECT_EQ(layout.dedicated(), 2);
  EXPECT_EQ(layout.pool_of(4), 0);
  EXPECT_EQ(layout.pool_of(5), 1);
  EXPECT_EQ(layout.in_pool(4), 2);
  EXPECT_EQ(layout.in_pool(7), 3);
}

}  // namespace
}  // namespace cadenza::program::test_layout
