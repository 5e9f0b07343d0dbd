// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/text.hpp"

#include <gtest/gtest.h>

namespace cadenza {
namespace {

TEST(Nearest, IsTheFewestErrorsAway) {
  EXPECT_EQ(nearest("trian", {"plan", "train", "attend"}), "train");
  EXPECT_EQ(nearest("outptu", {"input", "output"}), "output");
  EXPECT_EQ(nearest("cadd", {"zigzag", "cad", "auto"}), "cad");
}

TEST(Nearest, KnowsOtherWordsForTheSame) {
  const std::vector<std::string> dtypes = {"bfloat16", "float32", "float64"};
  EXPECT_EQ(nearest("bf16", dtypes), "bfloat16");
  EXPECT_EQ(nearest("fp32", dtypes), "float32");
  EXPECT_EQ(nearest("FP64", dtypes), "float64");
  EXPECT_EQ(nearest("bf16", {"uint16", "uint32"}), "");
  EXPECT_EQ(nearest("float16", dtypes), "");
  EXPECT_EQ(nearest("Float16", dtypes), "");
}

TEST(Nearest, TakesCapitalLettersForSmallOnes) {
  EXPECT_EQ(nearest("CAD", {"zigzag", "cad", "auto"}), "cad");
  EXPECT_EQ(nearest("LR", {"kind", "lr"}), "lr");
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
