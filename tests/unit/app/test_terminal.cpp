// SPDX-License-Identifier: Apache-2.0
#include "app/planner/terminal.hpp"

#include <gtest/gtest.h>

namespace cadenza::app::test_terminal {
namespace {

TEST(Wrapped, LeavesLinesThatFit) {
  EXPECT_EQ(wrapped("", 10), "");
  EXPECT_EQ(wrapped("0123456789\n\n  ab\n", 10), "0123456789\n\n  ab\n");
  EXPECT_EQ(wrapped("\u00d7\u00d7\u00d7 \u00d7", 5),
            "\u00d7\u00d7\u00d7 \u00d7");  // characters, not bytes
}

TEST(Wrapped, GoesOnBelowTheTextBehindTheFirstWord) {
  EXPECT_EQ(wrapped("next   one two three four", 15), "next   one two\n     three four");
  EXPECT_EQ(wrapped("a  one two three", 10), "a  one two\n   three");
}

TEST(Wrapped, DoesNotBreakWords) {
  EXPECT_EQ(wrapped("a 0123456789", 6), "a\n  0123456789");
}

}  // namespace
}  // namespace cadenza::app::test_terminal
