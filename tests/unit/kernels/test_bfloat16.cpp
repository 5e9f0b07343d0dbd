// SPDX-License-Identifier: Apache-2.0
#include "cadenza/kernels/bfloat16.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace cadenza {
namespace {

double rounded(double value) {
  return static_cast<double>(static_cast<float>(bfloat16(value)));
}

/// Of the two multiples of the last digit around a number, the nearest; of two as near, the even.
double nearest(double value) {
  int exponent = 0;
  std::frexp(value, &exponent);
  const double digit = std::ldexp(1, std::max(exponent - 8, -133));
  const double below = std::floor(value / digit) * digit;
  const double above = below + digit;
  if (value - below != above - value) return value - below < above - value ? below : above;
  return std::fmod(below / digit, 2) == 0 ? below : above;
}

TEST(Bfloat16, DoublesAreRoundedOnce) {
  EXPECT_EQ(rounded(1 + 0x1p-8), 1);  // a tie
  EXPECT_EQ(rounded(1 + 0x1p-8 + 0x1p-40), 1 + 0x1p-7);
  EXPECT_EQ(rounded(1 + 3 * 0x1p-8 - 0x1p-40), 1 + 0x1p-7);
  EXPECT_EQ(rounded(-1 - 0x1p-8 - 0x1p-50), -1 - 0x1p-7);
  std::mt19937_64 random(1);
  for (int i = 0; i < 200000; ++i) {
    // Near to the middle between two, where a rounding before this one decides.
    const auto digits = static_cast<double>(128 + random() % 128) + 0.5;
    const double off =
        std::ldexp(static_cast<double>(random() % 5) - 2, -8 - static_cast<int>(random() % 40));
    const double sign = random() % 2 == 0 ? 1 : -1;
    const double value = sign * std::ldexp(digits + off, static_cast<int>(random() % 250) - 140);
    ASSERT_EQ(rounded(value), nearest(value)) << value;
  }
}

TEST(Bfloat16, DoublesBeyondFloat32) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(rounded(kInfinity), kInfinity);
  EXPECT_EQ(rounded(-1e300), -kInfinity);
  EXPECT_EQ(rounded(0x1.ffp127), kInfinity);  // the middle between the largest and what is next
  EXPECT_EQ(rounded(0x1.feffffffp127), 0x1.fep127);
  EXPECT_EQ(rounded(1e-300), 0);
  EXPECT_TRUE(std::signbit(rounded(-1e-300)));
  EXPECT_TRUE(std::isnan(rounded(std::numeric_limits<double>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(rounded(std::numeric_limits<double>::signaling_NaN())));
}

}  // namespace
}  // namespace cadenza
