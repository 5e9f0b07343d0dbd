// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cadenza/base/error.hpp"
#include "cadenza/trace/recorder.hpp"

namespace cadenza::trace {
namespace {

TEST(Recorder, CountsWhatDoesNotFitAndNeverMoves) {
  Recorder recorder(100);
  recorder.record({.bytes = 0});
  const Event* first = recorder.events().data();
  for (int i = 1; i < 130; ++i) recorder.record({.bytes = i});
  EXPECT_EQ(recorder.events().data(), first);
  ASSERT_EQ(recorder.events().size(), 100);
  EXPECT_EQ(recorder.events().back().bytes, 99);
  EXPECT_EQ(recorder.dropped(), 30);
  recorder.clear();
  EXPECT_EQ(recorder.events().size(), 0);
  recorder.record({.bytes = 7});
  EXPECT_EQ(recorder.events().front().bytes, 7);
  EXPECT_EQ(recorder.events().data(), first);
  EXPECT_EQ(recorder.dropped(), 30) << "drops are counted over the run";
}

TEST(Process, BeganWhenItDid) {
  constexpr std::int64_t kTick = 10'000'000;
  usleep(3 * kTick / 1000);
  const std::int64_t now = now_ns();
  EXPECT_GT(process_started_ns(), 0);
  EXPECT_LT(process_started_ns(), now - 2 * kTick);
  const pid_t child = fork();
  if (child == 0) {
    const std::int64_t began = process_started_ns();
    _exit(began >= now - 2 * kTick && began <= now_ns() + kTick ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "a new process began before it was made, or is yet to begin";
}

TEST(Recorder, WithoutRoomDropsEverything) {
  Recorder recorder(0);
  recorder.record({});
  EXPECT_TRUE(recorder.events().empty());
  EXPECT_EQ(recorder.dropped(), 1);
}

TEST(Recorder, GivesEqualNamesOneRow) {
  Recorder recorder(1);
  EXPECT_EQ(recorder.intern("attention"), 0);
  EXPECT_EQ(recorder.intern("mlp"), 1);
  EXPECT_EQ(recorder.intern(std::string("attention")), 0);
  recorder.clear();
  EXPECT_EQ(recorder.intern("mlp"), 1) << "names outlive a step";
  EXPECT_THAT(recorder.names(), ::testing::ElementsAre("attention", "mlp"));
}

TEST(Recorder, RefusesMoreNamesThanRowsCanBeNumbered) {
  Recorder recorder(1);
  for (int i = 0; i < 65536; ++i) ASSERT_EQ(recorder.intern(std::to_string(i)), i);
  EXPECT_THROW(recorder.intern("one more"), Error);
  EXPECT_THROW(recorder.intern("one more"), Error) << "a refused name must not stay";
  EXPECT_EQ(recorder.intern("65535"), 65535);
}

TEST(Clock, IsMonotonic) {
  std::int64_t last = now_ns();
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t now = now_ns();
    ASSERT_GE(now, last);
    last = now;
  }
}

}  // namespace
}  // namespace cadenza::trace
