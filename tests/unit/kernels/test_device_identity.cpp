// SPDX-License-Identifier: Apache-2.0
#include "cadenza/kernels/device_identity.hpp"

#include <gmock/gmock.h>

namespace cadenza::kernels {
namespace {

TEST(MissingDevice, IsSaidOfADriverOlderThanTheProgram) {
  EXPECT_EQ(describe_old_driver(12040, 13000),
            "its driver is for CUDA 12.4, older than this program's CUDA 13.0");
}

TEST(MissingDevice, IsSaidOfADeviceOlderThanTheProgram) {
  EXPECT_EQ(describe_old_device("NVIDIA A100", 80, 90),
            "NVIDIA A100 has compute capability 8.0; this program is for 9.0 and newer "
            "(CMAKE_CUDA_ARCHITECTURES)");
  EXPECT_EQ(describe_old_device("NVIDIA H100", 90, 90), "");
  EXPECT_EQ(describe_old_device("NVIDIA B200", 100, 90), "");
}

TEST(MissingDevice, IsNothingWhereTestsRun) {
  EXPECT_EQ(missing_device(), "");
}

TEST(FreeMemory, IsWhatADeviceHasLeft) {
  const std::int64_t all = device_identity().bytes;  // 0: tensors are on the host
  EXPECT_LE(free_device_memory(), all);
  EXPECT_EQ(free_device_memory() > 0, all > 0);
}

}  // namespace
}  // namespace cadenza::kernels
