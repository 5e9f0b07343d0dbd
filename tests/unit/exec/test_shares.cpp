// SPDX-License-Identifier: Apache-2.0
// What every rank owns of the parameters in ZeRO-1.
#include <gmock/gmock.h>

#include "exec/collectives/gradients.hpp"
#include "unit/exec/tiny.hpp"

namespace cadenza::exec {
namespace {

model::ParameterTable table(bool tied) {
  config::Model m = testing::tiny_experiment().model;
  m.tie_embeddings = tied;
  return model::make_parameter_table(m, model::whole_model(m));
}

TEST(GradientShards, PartEveryElementAmongTheRanks) {
  for (const bool tied : {false, true}) {
    for (const int ranks : {1, 2, 3, 7}) {
      const model::ParameterTable whole = table(tied);
      const GradientShards shares(whole, ranks);
      std::vector<int> owners(static_cast<std::size_t>(whole.elements), 0);
      for (int rank = 0; rank < ranks; ++rank) {
        std::int64_t end = 0, owned = 0;
        for (const Range& range : shares.owned(rank)) {
          EXPECT_LE(end, range.begin) << "ascending";
          end = range.end;
          owned += range.size();
          for (std::int64_t i = range.begin; i < range.end; ++i) {
            ++owners[static_cast<std::size_t>(i)];
          }
        }
        EXPECT_EQ(GradientShards::owned_elements(whole, rank, ranks), owned);
      }
      EXPECT_THAT(owners, ::testing::Each(1));
    }
  }
}

TEST(GradientShards, OfABucketFollowOneAnotherAndDifferByOneElementAtMost) {
  const GradientShards shares(table(false), 5);
  EXPECT_EQ(shares.layers(), 2u);
  for (const GradientShards::Bucket& bucket : shares.buckets()) {
    std::int64_t next = bucket.elements.begin;
    for (int rank = 0; rank < 5; ++rank) {
      const Range range = bucket.of(rank);
      EXPECT_EQ(range.begin, next);
      EXPECT_EQ(range.size(), bucket.counts[static_cast<std::size_t>(rank)]);
      EXPECT_LE(std::abs(range.size() - bucket.elements.size() / 5), 1);
      next = range.end;
    }
    EXPECT_EQ(next, bucket.elements.end);
  }
}

TEST(GradientShards, MoreRanksThanElementsLeaveSomeWithNothing) {
  const model::ParameterTable whole = table(false);
  const auto ranks = static_cast<int>(whole.elements);
  const GradientShards shares(whole, ranks);
  std::int64_t owned = 0;
  bool nothing = false;
  for (int rank = 0; rank < ranks; rank += 997) nothing |= shares.owned(rank).empty();
  for (int rank = 0; rank < ranks; ++rank) {
    for (const Range& range : shares.owned(rank)) owned += range.size();
  }
  EXPECT_EQ(owned, whole.elements);
  EXPECT_TRUE(nothing);
}

}  // namespace
}  // namespace cadenza::exec
