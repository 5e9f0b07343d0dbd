// SPDX-License-Identifier: Apache-2.0
// Limits of processor time, from the files of systems that are not at hand.
#include "app/runtime/threads.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace cadenza::app::test_cpu_quota {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOther =
    "22 28 0:21 / /proc rw,nosuid shared:12 - proc proc rw\n"
    "29 28 0:26 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
    "broken - line\n";
constexpr const char* kV2 = "30 28 0:27 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n";

class CpuQuotaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    const fs::path file = root_ + path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void process(const std::string& groups, const std::string& mounts) const {
    write("/proc/self/cgroup", groups);
    write("/proc/self/mountinfo", kOther + mounts);
  }
  double cores() const { return cpu_quota(root_).cores; }

  std::string root_;
};

TEST_F(CpuQuotaTest, NoControlGroupsAreNoLimit) {
  EXPECT_EQ(cores(), 0);
  process("", "");
  EXPECT_EQ(cores(), 0);
}

TEST_F(CpuQuotaTest, AContainerOfVersion2SeesItsLimitAtTheTop) {
  process("0::/\n", kV2);
  write("/sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_DOUBLE_EQ(cores(), 1.5);
  write("/sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(cores(), 0);
}

TEST_F(CpuQuotaTest, TheTightestOfTheGroupAndThoseAroundItCounts) {
  process("0::/jobs/mine/step\n", kV2);
  write("/sys/fs/cgroup/jobs/cpu.max", "800000 100000\n");
  write("/sys/fs/cgroup/jobs/mine/cpu.max", "200000 50000\n");
  write("/sys/fs/cgroup/jobs/mine/step/cpu.max", "max 100000\n");
  write("/sys/fs/cgroup/jobs/other/cpu.max", "100000 100000\n");
  EXPECT_DOUBLE_EQ(cores(), 4);
}

TEST_F(CpuQuotaTest, Version1SaysItInTwoFiles) {
  process("4:memory:/docker/m\n3:cpu,cpuacct:/docker/c\n0::/\n",
          "31 28 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n");
  write("/sys/fs/cgroup/cpu,cpuacct/docker/c/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/docker/c/cpu.cfs_quota_us", "250000\n");
  EXPECT_DOUBLE_EQ(cores(), 2.5);
  write("/sys/fs/cgroup/cpu,cpuacct/docker/c/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(cores(), 0);
}

/// A container may see its own group alone, under the name that it has outside.
TEST_F(CpuQuotaTest, TheGroupThatIsMountedIsTheTop) {
  write("/sys/fs/cgroup/cpu.max", "100000 100000\n");
  process("0::/pods/a\n", "30 28 0:27 /pods/a /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  EXPECT_DOUBLE_EQ(cores(), 1);
  process("0::/../b\n", kV2);  // a group outside of what is seen
  EXPECT_DOUBLE_EQ(cores(), 1);
  write("/sys/fs/cgroup/c/cpu.max", "50000 100000\n");
  process("0::/pods/a/c\n", "30 28 0:27 /pods/a /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  EXPECT_DOUBLE_EQ(cores(), 0.5);
}

TEST_F(CpuQuotaTest, ProcessesThatShareALimitAreKnownByIt) {
  write("/sys/fs/cgroup/jobs/cpu.max", "200000 100000\n");
  write("/sys/fs/cgroup/alone/cpu.max", "200000 100000\n");
  const auto group_of = [&](const std::string& group) {
    process("0::" + group + "\n", kV2);
    return cpu_quota(root_).group;
  };
  EXPECT_EQ(group_of("/jobs/a"), group_of("/jobs/b"));
  EXPECT_NE(group_of("/jobs/a"), group_of("/alone"));
}

}  // namespace
}  // namespace cadenza::app::test_cpu_quota
