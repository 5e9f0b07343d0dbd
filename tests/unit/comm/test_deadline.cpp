// SPDX-License-Identifier: Apache-2.0
#include "cadenza/comm/communicator.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace cadenza::comm {
namespace {

/// Far more than the deadlines here, which end it.
void wait_for_ever() {
  std::this_thread::sleep_for(std::chrono::seconds(600));
}

TEST(DeadlineDeathTest, ACallThatDoesNotEndEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const Deadline deadline("in MPI_Comm_split for a rank that does not answer", 0.2, 3);
        wait_for_ever();
      },
      ::testing::ExitedWithCode(5),
      "cadenza: no operation completed for 0.2 s \\(run.timeout\\): rank 3 waits in "
      "MPI_Comm_split for a rank that does not answer");
}

TEST(DeadlineTest, ACallThatEndsIsNotTouched) {
  for (int i = 0; i < 20; ++i) const Deadline deadline("in MPI_Comm_split", 300, i);
  const Deadline never("in MPI_Comm_split", 0, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

}  // namespace
}  // namespace cadenza::comm
