// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "app/runtime/machine.hpp"

namespace cadenza::app::test_devices_line {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
const kernels::DeviceIdentity kLarge{"H200", "GPU-1", 132, 1980, 141 * kGiB};
const kernels::DeviceIdentity kSmall{"L4", "GPU-2", 58, 2040, 24 * kGiB};

TEST(Devices, AreSaidOnceWhereAllAreAlike) {
  const kernels::DeviceIdentity devices[] = {kLarge, kLarge};
  EXPECT_EQ(describe_devices(devices), "H200 (132 multiprocessors, 141.0 GiB)");
}

TEST(Devices, AreSaidWithTheirRanksWhereTheyDiffer) {
  const kernels::DeviceIdentity devices[] = {kLarge, kSmall, kLarge};
  EXPECT_EQ(describe_devices(devices),
            "H200 (132 multiprocessors, 141.0 GiB) on ranks 0,2; "
            "L4 (58 multiprocessors, 24.0 GiB) on rank 1");
}

TEST(Devices, RanksThatShareOneAreFound) {
  const kernels::DeviceIdentity devices[] = {kLarge, kSmall, kLarge, kLarge};
  const std::vector<SharedDevice> shared = shared_devices(devices);
  ASSERT_EQ(shared.size(), 1u);
  EXPECT_EQ(shared[0].uuid, "GPU-1");
  EXPECT_THAT(shared[0].ranks, ElementsAre(0, 2, 3));
  EXPECT_EQ(describe_sharing(shared), "ranks 0,2-3 share device GPU-1");
}

TEST(Devices, HostsAndDevicesOfOneRankEachAreNotShared) {
  const kernels::DeviceIdentity host{"OpenMP", "", 0, 0, 0};
  const kernels::DeviceIdentity hosts[] = {host, host};
  EXPECT_THAT(shared_devices(hosts), IsEmpty());
  const kernels::DeviceIdentity own[] = {kLarge, kSmall};
  EXPECT_THAT(shared_devices(own), IsEmpty());
}

}  // namespace
}  // namespace cadenza::app::test_devices_line
