// SPDX-License-Identifier: Apache-2.0
#include "cadenza/kernels/stream_times.hpp"

#include <gmock/gmock.h>

#include <chrono>
#include <thread>

namespace cadenza {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

void work(std::int64_t milliseconds) {
  enqueue([](std::int64_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); },
          milliseconds);
}

TEST(StreamTimes, AreThoseOfTheWorkBetweenTwoMarks) {
  if (kDeviceIsCuda) GTEST_SKIP() << "work of the host is on no GPU's stream";
  StreamTimes times(now_ns);
  const std::int64_t begin = now_ns();
  const std::size_t first = times.mark();
  work(5);
  const std::size_t second = times.mark();
  work(10);
  const std::size_t third = times.mark();
  fence();
  const std::int64_t end = now_ns();
  EXPECT_GE(times.at(first), begin);
  EXPECT_GE(times.at(second) - times.at(first), 5 * kMillisecond);
  EXPECT_GE(times.at(third) - times.at(second), 10 * kMillisecond);
  EXPECT_LE(times.at(third), end);
}

TEST(StreamTimes, WaitForNothing) {
  if (!kStreamRunsLater || kDeviceIsCuda) GTEST_SKIP() << "the preset `separate` has a late stream";
  StreamTimes times(now_ns);
  bool ran = false;
  times.mark();
  enqueue([&ran] { ran = true; });
  const std::size_t behind = times.mark();
  EXPECT_FALSE(ran);
  const std::int64_t waited = now_ns();
  fence();
  EXPECT_TRUE(ran);
  EXPECT_GE(times.at(behind), waited) << "the time when the stream got there, not of the call";
}

TEST(StreamTimes, CountFromTheLastClear) {
  StreamTimes times(now_ns);
  EXPECT_EQ(times.mark(), 0u);
  EXPECT_EQ(times.mark(), 1u);
  fence();
  const std::int64_t before = times.at(1);
  times.clear();
  EXPECT_EQ(times.mark(), 0u);
  fence();
  EXPECT_GE(times.at(0), before);
}

}  // namespace
}  // namespace cadenza
