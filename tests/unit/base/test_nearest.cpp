// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/nearest.hpp"

#include <gtest/gtest.h>

namespace cadenza {
namespace {

TEST(Nearest, IsTheFewestErrorsAway) {
  EXPECT_EQ(nearest("trian", {"plan", "train", "attend"}), "train");
  EXPECT_EQ(nearest("--outptu", {"--input", "--output"}), "--output");
  EXPECT_EQ(nearest("", {"ab", "a"}), "a");
}

}  // namespace
}  // namespace cadenza
