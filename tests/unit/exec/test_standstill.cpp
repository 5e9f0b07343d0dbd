// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/standstill.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "cadenza/trace/events/event.hpp"

namespace cadenza::exec {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kSleep = 50 * kMs;

void sleep() {
  std::this_thread::sleep_for(std::chrono::nanoseconds(kSleep));
}

/// Uses `amount` ns of processor, however long that takes on a busy machine.
template <typename Each>
void spin(std::int64_t amount, Each each) {
  const std::int64_t begin = Standstill::processor_ns();
  while (Standstill::processor_ns() - begin < amount) each();
}

template <typename Operation>
std::int64_t measure(Standstill& still, Operation operation, bool computes = false) {
  const Standstill::Operation outer = still.begin(trace::now_ns());
  operation();
  const std::int64_t processor = Standstill::processor_ns();
  return still.end(outer, processor, trace::now_ns(), computes);
}

TEST(Standstill, IsTheTimeWithoutProcessor) {
  Standstill still;
  EXPECT_GE(measure(still, sleep), kSleep - kMs);
}

TEST(Standstill, ComputingIsNone) {
  Standstill still;
  std::int64_t wall = 0;
  const std::int64_t found = measure(still, [&] {
    const std::int64_t begin = trace::now_ns();
    spin(kSleep, [] {});
    wall = trace::now_ns() - begin;
  });
  EXPECT_LE(found, wall - kSleep + kMs) << "what others took of the core, no more";
}

TEST(Standstill, OfAWaitTheLongestTimeBetweenLooksCounts) {
  Standstill still;
  std::int64_t longest = 0;
  std::int64_t all = 0;
  const std::int64_t found = measure(still, [&] {
    std::int64_t last = trace::now_ns();
    for (int turn = 0; turn < 4; ++turn) {
      sleep();
      const std::int64_t now = trace::now_ns();
      still.looked(now);
      longest = std::max(longest, now - last);
      all += now - last;
      last = now;
    }
  });
  EXPECT_GE(found, kSleep - kMs);
  EXPECT_LE(found, longest + kMs);
  EXPECT_GE(all - longest, 3 * kSleep) << "else this shows nothing";
}

TEST(Standstill, OfAComputationThatLooksMeanwhileAllTimesCount) {
  Standstill still;
  const auto slices = [&] {
    for (int turn = 0; turn < 4; ++turn) {
      sleep();
      still.looked(trace::now_ns());
    }
  };
  EXPECT_GE(measure(still, slices, true), 4 * (kSleep - kMs));
}

TEST(Standstill, WhatIsWithinCountsThere) {
  Standstill still;
  std::int64_t inner = 0;
  std::int64_t wall_within = 0;
  const std::int64_t begin = trace::now_ns();
  const std::int64_t outer = measure(still, [&] {
    inner = measure(still, [&] {
      const std::int64_t began = trace::now_ns();
      sleep();
      wall_within = trace::now_ns() - began;
    });
  });
  EXPECT_GE(inner, kSleep - kMs);
  EXPECT_LE(outer, trace::now_ns() - begin - wall_within);
}

}  // namespace
}  // namespace cadenza::exec
