// SPDX-License-Identifier: Apache-2.0
// Two replicas of a tensor group of two, on nodes of different sizes.
#include "cadenza/simulate/simulator.hpp"
#include "unit/tiny_model.hpp"

#include <gtest/gtest.h>

namespace cadenza::simulate::test_tensor_ranks {
namespace {

struct Setting {
  std::int64_t tensor = 2;
  std::int64_t ranks_per_node = 2;
  std::int64_t adapters = 0;  ///< of a node; 0: one per rank
  double jitter = 0;
};

bool alike(const Setting& setting) {
  config::Experiment e;
  e.model = tiny_model();
  e.parallel.data = 4 / setting.tensor;
  e.parallel.tensor = setting.tensor;
  e.cluster.ranks_per_node = setting.ranks_per_node;
  e.cluster.jitter = setting.jitter;
  config::Machine machine;
  machine.links.adapters = setting.adapters;
  const program::Layout layout(e);
  return tensor_ranks_alike(e, layout, Costs(machine, e, layout));
}

TEST(TensorRanksAlike, WhereEachHasTheSameNeighboursAndItsOwnAdapter) {
  EXPECT_TRUE(alike({}));
  EXPECT_TRUE(alike({.ranks_per_node = 4, .adapters = 1}));  // one node: no adapter is used
  EXPECT_TRUE(alike({.tensor = 1, .jitter = 0.1}));
}

TEST(TensorRanksAlike, NotWhereTheyVaryShareAnAdapterOrHaveOtherNeighbours) {
  EXPECT_FALSE(alike({.jitter = 0.1}));
  EXPECT_FALSE(alike({.adapters = 1}));
  EXPECT_FALSE(alike({.ranks_per_node = 3}));  // rank 2 beside rank 0, rank 3 not beside rank 1
}

}  // namespace
}  // namespace cadenza::simulate::test_tensor_ranks
