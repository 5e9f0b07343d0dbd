// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/random.hpp"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace cadenza {
namespace {

TEST(Random, FollowsThePublishedSplitMix64) {
  // First outputs of the SplitMix64 sequence that starts from state 0: its state advances by
  // 0x9e3779b97f4a7c15, which mix64 adds itself.
  constexpr std::array<std::uint64_t, 3> kPublished = {0xe220a8397b1dcdafULL, 0x6e789e6aa1b965f4ULL,
                                                       0x06c45d188009454fULL};
  for (std::uint64_t i = 0; i < kPublished.size(); ++i) {
    EXPECT_EQ(mix64(i * 0x9e3779b97f4a7c15ULL), kPublished[i]);
  }
}

TEST(Random, DependsOnSeedStreamAndIndexAlone) {
  EXPECT_EQ(random_bits(1, 2, 3), random_bits(1, 2, 3));
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (std::uint64_t stream = 0; stream < 20; ++stream) {
      for (std::uint64_t index = 0; index < 20; ++index) {
        seen.insert(random_bits(seed, stream, index));
      }
    }
  }
  EXPECT_EQ(seen.size(), 8000u) << "no two of (seed, stream, index) draw the same";
}

struct Moments {
  double mean = 0, variance = 0, skew = 0, kurtosis = 0, lag = 0;
};

template <typename Draw>
Moments moments(Draw draw, int n) {
  Moments m;
  for (int i = 0; i < n; ++i) m.mean += draw(i) / n;
  for (int i = 0; i < n; ++i) {
    const double x = draw(i) - m.mean;
    m.variance += x * x / n;
    m.skew += x * x * x / n;
    m.kurtosis += x * x * x * x / n;
    m.lag += x * (draw(i + 1) - m.mean) / n;
  }
  return m;
}

TEST(Random, UniformHasItsMoments) {
  constexpr int kDraws = 200'000;
  const auto draw = [](int i) { return random_uniform(11, 5, static_cast<std::uint64_t>(i)); };
  for (int i = 0; i < kDraws; ++i) {
    ASSERT_GE(draw(i), 0.0);
    ASSERT_LT(draw(i), 1.0);
  }
  // Five standard errors of each: seeds are fixed, so this cannot flake.
  const Moments m = moments(draw, kDraws);
  EXPECT_NEAR(m.mean, 0.5, 5 * 0.29 / std::sqrt(kDraws));
  EXPECT_NEAR(m.variance, 1.0 / 12, 5 * 0.075 / std::sqrt(kDraws));
  EXPECT_NEAR(m.lag, 0.0, 5 * 0.084 / std::sqrt(kDraws));
}

TEST(Random, NormalHasItsMoments) {
  constexpr int kDraws = 200'000;
  const auto draw = [](int i) { return random_normal(3, 9, static_cast<std::uint64_t>(i)); };
  const Moments m = moments(draw, kDraws);
  EXPECT_NEAR(m.mean, 0.0, 5 * 1.0 / std::sqrt(kDraws));
  EXPECT_NEAR(m.variance, 1.0, 5 * 1.42 / std::sqrt(kDraws));
  EXPECT_NEAR(m.skew, 0.0, 5 * 3.9 / std::sqrt(kDraws));
  EXPECT_NEAR(m.kurtosis, 3.0, 5 * 9.8 / std::sqrt(kDraws));
  EXPECT_NEAR(m.lag, 0.0, 5 * 1.0 / std::sqrt(kDraws));
}

TEST(Random, StreamsAreIndependent) {
  constexpr int kDraws = 100'000;
  double covariance = 0;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    covariance += random_normal(1, 1, i) * random_normal(1, 2, i) / kDraws;
  }
  EXPECT_NEAR(covariance, 0.0, 5 / std::sqrt(kDraws));
}

}  // namespace
}  // namespace cadenza
