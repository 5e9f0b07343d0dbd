// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/nearest.hpp"

#include <gtest/gtest.h>

namespace cadenza {
namespace {

TEST(Nearest, IsTheFewestErrorsAway) {
  EXPECT_EQ(nearest("trian", {"plan", "train", "attend"}), "train");
  EXPECT_EQ(nearest("outptu", {"input", "output"}), "output");
  EXPECT_EQ(nearest("cadd", {"zigzag", "cad", "auto"}), "cad");
}

TEST(Nearest, IsNothingWhereHalfOfTheWordWouldChange) {
  EXPECT_EQ(nearest("fp16", {"bfloat16", "float32", "float64"}), "");
  EXPECT_EQ(nearest("full", {"none", "mlp", "attention", "layer"}), "");
  EXPECT_EQ(nearest("fsdp", {"none", "optimizer"}), "");
  EXPECT_EQ(nearest("", {"ab", "a"}), "");
  EXPECT_EQ(nearest("ab", {}), "");
  EXPECT_EQ(nearest_hint("fsdp", {"none", "optimizer"}), "");
  EXPECT_EQ(nearest_hint("optimiser", {"none", "optimizer"}), ", nearest is 'optimizer'");
}

}  // namespace
}  // namespace cadenza
