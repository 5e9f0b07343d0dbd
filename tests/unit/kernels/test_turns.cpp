// SPDX-License-Identifier: Apache-2.0
// Ordered additions by real threads. Built a second time with the thread sanitizer, where a missing
// wait is a race (tests/race/turns_race.cpp).
#include "../../../kernels/cpu/ordered_accumulation.hpp"

#include <gtest/gtest.h>

#include "unit/kernels/ordered_sums.hpp"

namespace cadenza::testing {
namespace {

TEST(OrderedAccumulation, AdditionsHappenInTheOrderOfTheUnits) {
  for (const int threads : {1, 2, 5}) {
    const OrderedSums sums = add_in_turns(threads, Waiting::yes);
    for (const std::vector<int>& units : sums.units_by_slot) {
      ASSERT_FALSE(units.empty());
      EXPECT_TRUE(std::is_sorted(units.begin(), units.end())) << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace cadenza::testing
