// SPDX-License-Identifier: Apache-2.0
#include "app/runtime/signals.hpp"

#include <gtest/gtest.h>

#include <csignal>

namespace cadenza::app::test_signals {
namespace {

bool has_signal_stack() {
  stack_t stack{};
  sigaltstack(nullptr, &stack);
  return (stack.ss_flags & SS_DISABLE) == 0;
}

TEST(StopSignals, HandlersRunOnAStackOfTheirOwn) {
  const bool before = has_signal_stack();
  {
    const StopSignals signals;
    EXPECT_TRUE(has_signal_stack());
    for (const int number : {SIGTERM, SIGINT, SIGUSR1}) {
      struct sigaction action {};
      sigaction(number, nullptr, &action);
      EXPECT_TRUE(action.sa_flags & SA_ONSTACK) << signal_name(number);
    }
  }
  EXPECT_EQ(has_signal_stack(), before);
}

TEST(StopSignals, TheFirstCountsAndOneOnTheWayOutChangesNothing) {
  {
    const StopSignals signals;
    EXPECT_EQ(StopSignals::caught(), 0);
    std::raise(SIGUSR1);
    std::raise(SIGTERM);
    EXPECT_EQ(StopSignals::caught(), SIGUSR1);
  }
  std::raise(SIGTERM);
  EXPECT_EQ(exit_code_of(StopSignals::caught()), 85);
}

TEST(StopSignals, AnInterruptIsOneOfThem) {
  EXPECT_EQ(signal_name(SIGINT), "SIGINT");
  EXPECT_EQ(exit_code_of(SIGINT), 130);
}

}  // namespace
}  // namespace cadenza::app::test_signals
