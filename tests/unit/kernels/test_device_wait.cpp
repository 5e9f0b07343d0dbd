// SPDX-License-Identifier: Apache-2.0
// Waits for the device that are watched. On the stream of the preset `separate`, to ask is to run
// the next piece of work; where the stream is the host itself, nobody waits.
#include <gmock/gmock.h>

#include <stdexcept>

#include "cadenza/kernels/device.hpp"

namespace cadenza {
namespace {

void add_work(int pieces, int& ran) {
  for (int piece = 0; piece < pieces; ++piece) {
    enqueue([&ran] { ++ran; });
  }
}

/// A scope whose waits end with an error when they have asked `most` times, as run.timeout does.
struct Watch {
  explicit Watch(int most = 1'000'000)
      : scope([this, most](const std::function<bool()>& done) {
          ++waits;
          for (int asked = 0; !done(); ++asked) {
            if (asked == most) throw std::runtime_error("it does not end");
          }
        }) {}
  int waits = 0;
  DeviceWaitScope scope;
};

TEST(DeviceWait, IsOneForEveryFewPiecesOfWork) {
  int ran = 0;
  Watch watch;
  add_work(100, ran);
  fence();
  EXPECT_EQ(ran, 100);
  if (kStreamRunsLater) {
    EXPECT_GE(watch.waits, 5);
  } else {
    EXPECT_EQ(watch.waits, 0);
  }
}

/// A wait of run.timeout seconds in which the device goes on is no reason to stop.
TEST(DeviceWait, LimitsTheTimeOfSomeWorkNotOfAll) {
  if (!kStreamRunsLater || kDeviceIsCuda) GTEST_SKIP() << "the preset `separate` has a late stream";
  int ran = 0;
  {
    Watch watch(20);
    add_work(1000, ran);
    EXPECT_NO_THROW(fence());
    EXPECT_EQ(ran, 1000);
  }
  {
    Watch watch(10);  // less than what comes between two marks
    add_work(1000, ran);
    EXPECT_THROW(fence(), std::runtime_error);
    EXPECT_LT(ran, 1020);
  }
  fence();
  EXPECT_EQ(ran, 2000);
}

TEST(DeviceWait, IsWatchedInCopiesAndAllocationsToo) {
  if (!kStreamRunsLater) GTEST_SKIP() << "the stream is the host itself";
  MemoryLedger ledger;
  const auto values = allocate<float>(ledger, MemoryKind::other, "values", 3);
  const auto host = Kokkos::create_mirror_view(values);
  int ran = 0;
  Watch watch;
  add_work(1, ran);
  copy_and_wait(host, values);
  EXPECT_GE(watch.waits, 1);
  const int copied = watch.waits;
  add_work(1, ran);
  static_cast<void>(allocate<float>(ledger, MemoryKind::other, "more", 3));
  EXPECT_GT(watch.waits, copied);
}

TEST(DeviceWait, IsOverWithItsScope) {
  int ran = 0, waits = 0;
  {
    Watch watch;
    add_work(40, ran);
    waits = watch.waits;
  }
  fence();
  EXPECT_EQ(ran, 40);
  EXPECT_EQ(waits, 0);
}

}  // namespace
}  // namespace cadenza
