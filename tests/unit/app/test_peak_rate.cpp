// SPDX-License-Identifier: Apache-2.0
// The peak of machines whose clock is made up.
#include "app/runtime/machine.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <utility>

namespace cadenza::app::test_peak_rate {
namespace {

/// A machine that multiplies at `rate`, needs `start` seconds before every product and once
/// `preparation`, and in every `period` works for others after its first `share` seconds.
struct MadeUp {
  double rate = 1e11;
  double start = 0;
  double preparation = 0;
  double period = 1;
  double share = 1;
  double worked = 0;

  double operator()(const PeakProduct& product) {
    const double begin = now();
    worked += start + product.flops() / rate + std::exchange(preparation, 0.0);
    return now() - begin;
  }
  double now() const { return std::floor(worked / share) * period + std::fmod(worked, share); }
};

TEST(PeakRate, IsThatOfAMachineThatWorksForNobodyElse) {
  MadeUp machine;
  EXPECT_NEAR(peak_rate(std::ref(machine)), 1e11, 1e9);
  EXPECT_LT(machine.now(), 0.15);
}

TEST(PeakRate, IsFoundWhereOthersHaveThreeQuartersOfTheProcessor) {
  for (const double rate : {2e10, 1e11, 1e12}) {
    MadeUp machine{.rate = rate, .period = 0.016, .share = 0.004};
    EXPECT_NEAR(peak_rate(std::ref(machine)), rate, 0.01 * rate);
    EXPECT_LT(machine.now(), 0.5);
  }
}

TEST(PeakRate, IsFoundWhereAProductsStartTakesLongerThanASmallProduct) {
  MadeUp machine{.rate = 5e13, .start = 2e-5};
  EXPECT_NEAR(peak_rate(std::ref(machine)), 5e13, 0.02 * 5e13);
}

TEST(PeakRate, LeavesPreparationsOut) {
  MadeUp machine{.preparation = 0.5};
  EXPECT_NEAR(peak_rate(std::ref(machine)), 1e11, 1e9);
}

TEST(PeakRate, OfASlowMachineIsNotWaitedForLong) {
  MadeUp machine{.rate = 1e9};  // double precision, one thread
  EXPECT_NEAR(peak_rate(std::ref(machine)), 1e9, 1e7);
  EXPECT_LT(machine.now(), 0.12);
}

TEST(UsualRate, IsNotThatOfAMomentWithARaisedClock) {
  MadeUp machine{.rate = 7e14, .preparation = 0.5};
  int products = 0;
  const auto with_boosts = [&](const PeakProduct& product) {
    const double seconds = machine(product);
    return ++products % 3 == 0 ? 0.8 * seconds : seconds;
  };
  EXPECT_NEAR(usual_rate(with_boosts), 7e14, 1e12);
  EXPECT_LE(products, 17);
}

TEST(UsualRate, OfASlowDeviceIsNotWaitedForLong) {
  int products = 0;
  const auto slow = [&](const PeakProduct& product) {
    ++products;
    return product.flops() / 1e12;
  };
  EXPECT_NEAR(usual_rate(slow), 1e12, 1e9);
  EXPECT_EQ(products, 5);
}

}  // namespace
}  // namespace cadenza::app::test_peak_rate
