// SPDX-License-Identifier: Apache-2.0
// The line that says what computes attention.
#include "app/runtime/machine.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace cadenza::app::test_kernels_line {
namespace {

TEST(KernelsLine, SaysOnceWhatAllRanksHave) {
  EXPECT_EQ(describe_kernels(std::vector<std::string>{"AVX2"}), "AVX2");
  EXPECT_EQ(describe_kernels(std::vector<std::string>(3, "AVX-512")), "AVX-512");
}

TEST(KernelsLine, NamesTheRanksWhereTheyDiffer) {
  const std::vector<std::string> mixed = {"AVX-512", "AVX-512", "AVX2", "AVX2", "AVX2", "AVX-512"};
  EXPECT_EQ(describe_kernels(mixed), "AVX-512 on ranks 0-1,5; AVX2 on ranks 2-4");
  EXPECT_EQ(describe_kernels(std::vector<std::string>{"AVX2", "portable"}),
            "AVX2 on rank 0; portable on rank 1");
}

}  // namespace
}  // namespace cadenza::app::test_kernels_line
