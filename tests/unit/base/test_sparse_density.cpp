// SPDX-License-Identifier: Apache-2.0
// What steps show of sparse attention, by layer, and what plans expect after them.
#include "cadenza/base/sparse_density.hpp"

#include <gmock/gmock.h>

#include <cmath>

namespace cadenza {
namespace {

constexpr std::int64_t kLength = 256;
const SparseRule kRule{8, 4, 1, 0, 0, 0, 0};

/// Two heads of a document in a layer: one is dense, one has the blocks of the diagonal alone.
SparseCounts counts_of(int layer, bool dense_head) {
  SparseCounts counts;
  std::vector<std::int64_t> all(kLength);
  for (std::int64_t i = 0; i < kLength; ++i) all[static_cast<std::size_t>(i)] = i;
  counts.add(layer, SparsePattern::vertical_slash(kLength, 8, {}, {}), {0, kLength});
  if (dense_head)
    counts.add(layer, SparsePattern::vertical_slash(kLength, 8, {}, all), {0, kLength});
  return counts;
}

/// Of a row, of its causal pairs: the rows of a bin are 8, a block.
double diagonal_share(std::int64_t bin) {
  const double pairs = 8.0 * 9 / 2;
  return pairs / (pairs + 8.0 * 8 * static_cast<double>(bin));
}

std::int64_t in_units(double share) {
  return std::llround(share * double{SparseDensity::kUnit});
}

TEST(SparseCounts, AddUpHeads) {
  const SparseCounts counts = counts_of(3, true);
  ASSERT_EQ(counts.rows.size(), 1U);
  EXPECT_EQ(counts.rows.begin()->first, SparsePlace::of(3, kLength));
  EXPECT_EQ(counts.causal, 2 * kLength * (kLength + 1) / 2);
  EXPECT_EQ(counts.kept, kLength * (kLength + 1) / 2 + 32 * 36);
  EXPECT_DOUBLE_EQ(counts.sparsity(),
                   1 - static_cast<double>(counts.kept) / static_cast<double>(counts.causal));
}

/// Of one head, what a row keeps: its blocks and columns, or all that it sees.
double pairs_of_budgets(const SparseRule& rule, std::int64_t length) {
  const auto keys = static_cast<double>(2 * (rule.slashes - rule.window) * rule.block +
                                        (rule.window + rule.block - 2) / rule.block * rule.block +
                                        (rule.block + 1) / 2 + rule.columns);
  const double most = std::min(keys, static_cast<double>(length));
  return most * (most + 1) / 2 + (static_cast<double>(length) - most) * most;
}

// From 2^29 tokens on, shares times pairs are beyond 64 bits; from 2^24 on, a share of 1/1024 is
// more than what is kept.
TEST(SparseDensity, WeighsDocumentsOfAnyLengthWithinAPercent) {
  for (const SparseRule& rule :
       {SparseRule{64, 1024, 152, 0, 0, 64}, SparseRule{64, 0, 64, 0, 0, 64}}) {
    for (int digits = 10; digits <= 31; ++digits) {
      const std::int64_t length = (std::int64_t{1} << digits) - 7;
      const SparseDensity density = SparseDensity::of_budgets(rule, length);
      const Weights weights(Mask{}, &density, length);
      const double pairs =
          static_cast<double>(weights.pairs({0, length})) / static_cast<double>(weights.unit());
      const double exact = pairs_of_budgets(rule, length);
      EXPECT_NEAR(pairs, exact, 0.01 * exact) << digits << " digits";
    }
  }
}

TEST(SparseEstimate, KnowsLayersApartAndTheirMean) {
  SparseEstimate estimate;
  estimate.add(counts_of(0, false));
  estimate.add(counts_of(1, true));
  const auto share = [&](std::vector<int> layers, std::int64_t bin) {
    return estimate.density(kRule, kLength, layers).share(bin);
  };
  for (const std::int64_t bin : {0, 7, 31}) {
    const double sparse = diagonal_share(bin);
    const double half = (1 + sparse) / 2;
    EXPECT_EQ(share({0}, bin), in_units(sparse));
    EXPECT_EQ(share({1}, bin), in_units(half));
    EXPECT_EQ(share({0, 1}, bin), in_units((sparse + half) / 2));
    EXPECT_EQ(share({}, bin), share({0, 1}, bin));
    EXPECT_EQ(share({1, 7}, bin), share({1}, bin));  // nobody has seen layer 7
  }
  EXPECT_EQ(estimate.density(kRule, kLength, std::vector{7}),
            SparseDensity::of_budgets(kRule, kLength));
}

TEST(SparseEstimate, AStepCountsAsMuchAsAllBefore) {
  SparseEstimate estimate;
  estimate.add(counts_of(0, true));
  estimate.add(counts_of(0, true));
  estimate.add(counts_of(0, false));
  const double sparse = diagonal_share(31);
  EXPECT_EQ(estimate.density(kRule, kLength, {}).share(31),
            in_units(((1 + sparse) / 2 + sparse) / 2));
}

TEST(SparseEstimate, TakesTheNextLongerDocumentsOfALayer) {
  SparseCounts counts;
  counts.add(0, SparsePattern::vertical_slash(100, 8, {}, {}), {0, 100});
  counts.add(0, SparsePattern::vertical_slash(1000, 8, {}, {}), {0, 1000});
  counts.add(1, SparsePattern::vertical_slash(300, 8, {}, {}), {0, 300});
  SparseEstimate estimate;
  estimate.add(counts);
  const auto density = [&](std::int64_t length, int layer) {
    return estimate.density(kRule, length, std::vector{layer});
  };
  EXPECT_EQ(density(300, 0), density(1000, 0));
  EXPECT_EQ(density(50, 0), density(100, 0));
  EXPECT_EQ(density(5000, 0), density(1000, 0));
  EXPECT_EQ(density(5000, 1), density(300, 1));
  EXPECT_NE(density(5000, 1), density(5000, 0));
}

TEST(SparseEstimates, AStepReachesThePlanOfTheNextButOne) {
  SparseEstimates estimates;
  estimates.add(counts_of(0, true));
  EXPECT_TRUE(estimates.next.empty());
  const SparseEstimate first = estimates.after;
  EXPECT_FALSE(first.empty());
  estimates.add(counts_of(0, false));
  EXPECT_EQ(estimates.next, first);
  EXPECT_NE(estimates.after, first);
}

}  // namespace
}  // namespace cadenza
