// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "../../../kernels/portable/pack.hpp"

namespace cadenza::kernels::portable {
namespace {

template <typename Real>
Real exponential_of(Real x) {
  Real lanes[64];
  store(lanes, exponential(broadcast(x)));
  return lanes[0];
}

TEST(Pack, ExponentialIsWithinItsBound) {
  double worst = 0;
  for (double x = -87; x < 0; x += 1.7e-4) {
    const auto at = static_cast<float>(x);
    const double expected = std::exp(static_cast<double>(at));
    worst = std::max(worst, std::abs(exponential_of(at) - expected) / expected);
  }
  EXPECT_LT(worst, 1.3e-7);
  RecordProperty("worst_relative_error", std::to_string(worst));
}

TEST(Pack, ExponentialAtTheEnds) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exponential_of(0.0f), 1.0f);
  EXPECT_EQ(exponential_of(-infinity), 0.0f);
  EXPECT_EQ(exponential_of(-1e30f), 0.0f);
  EXPECT_EQ(exponential_of(-104.0f), 0.0f);
  EXPECT_EQ(exponential_of(1e-3f), 1.0f);
  EXPECT_EQ(exponential_of(1e30f), 1.0f);
  EXPECT_EQ(exponential_of(infinity), 1.0f);
  EXPECT_TRUE(std::isnan(exponential_of(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_EQ(exponential_of(-std::numeric_limits<double>::infinity()), 0.0);
  EXPECT_EQ(exponential_of(1e300), 1.0);
  EXPECT_TRUE(std::isnan(exponential_of(std::numeric_limits<double>::quiet_NaN())));
  EXPECT_DOUBLE_EQ(exponential_of(-1.0), std::exp(-1.0));
}

TEST(Pack, SelectTakesEachLaneOnItsOwn) {
  float limits[64], chosen[64];
  for (int i = 0; i < 64; ++i) limits[i] = static_cast<float>(i);
  store(chosen,
        select_less<float>(broadcast(2.0f), load(limits), broadcast(1.0f), broadcast(-1.0f)));
  for (int i = 0; i < kLanes<float>; ++i) EXPECT_EQ(chosen[i], i > 2 ? 1.0f : -1.0f);
}

}  // namespace
}  // namespace cadenza::kernels::portable
