// SPDX-License-Identifier: Apache-2.0
// The processor time that a container or a batch system leaves to a process, whatever number of
// cores it may run on.
#pragma once

#include <cstdint>
#include <string>

namespace cadenza::app {

struct CpuQuota {
  double cores = 0;         ///< seconds of processor time in a second; 0: no limit
  std::uint64_t group = 0;  ///< equal in processes of a host that share the limit
};

/// The tightest limit of this process's control group and those around it, of cgroup v1
/// (cpu.cfs_quota_us) and v2 (cpu.max). None where the system has no control groups.
/// @param root  before every path that is read: a test's own files; empty: the system's
CpuQuota cpu_quota(const std::string& root = "");

}  // namespace cadenza::app
