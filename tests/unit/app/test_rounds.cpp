// SPDX-License-Identifier: Apache-2.0
#include "app/calibrate/measure.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace cadenza::app::test_rounds {
namespace {

Rounds rounds(std::initializer_list<double> seconds) {
  Rounds made;
  for (const double value : seconds) made.add(value);
  return made;
}

TEST(Rounds, TakesTheMeanOfTheTwoFastest) {
  EXPECT_EQ(rounds({3}).seconds(), 3);
  EXPECT_EQ(rounds({3, 2}).seconds(), 2.5);
  EXPECT_EQ(rounds({9, 3, 5, 2}).seconds(), 2.5);
}

TEST(Rounds, AreNoisyUntilTwoAgree) {
  EXPECT_FALSE(rounds({1}).noisy()) << "nothing is known yet";
  EXPECT_FALSE(rounds({1, 1.09}).noisy());
  EXPECT_TRUE(rounds({1, 1.2}).noisy());
  EXPECT_TRUE(rounds({1, 1.2, 1.21}).noisy());
  EXPECT_FALSE(rounds({5, 1.2, 1.21}).noisy());
  EXPECT_NEAR(rounds({1, 1.2}).spread(), 0.2, 1e-12);
}

TEST(Rounds, OfWhatNoStepNoticesAreNotNoisy) {
  EXPECT_FALSE(rounds({1e-6, 15e-6}).noisy());
  const double never = std::numeric_limits<double>::infinity();  // no such operation
  EXPECT_FALSE(rounds({never, never}).noisy());
}

TEST(SomeOf, NamesTheFirst) {
  EXPECT_EQ(some_of({"a", "b"}), "a, b");
  EXPECT_EQ(some_of({"a", "b", "c", "d", "e", "f", "g"}), "a, b, c, d, e and 2 more");
}

}  // namespace
}  // namespace cadenza::app::test_rounds
