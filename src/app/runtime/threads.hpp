// SPDX-License-Identifier: Apache-2.0
// How many threads a rank computes with, and on which cores, within the quota of its container:
// settled when a session starts, before Kokkos does.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cadenza/comm/communicator.hpp"

namespace cadenza::app {

/// Of a rank: Kokkos keeps the threads of OpenMP in an array of as many, and checks no bounds.
inline constexpr int kMostThreads = 512;

/// The processor time that a container or a batch system leaves to a process, whatever number of
/// cores it may run on.
struct CpuQuota {
  double cores = 0;         ///< seconds of processor time in a second; 0: no limit
  std::uint64_t group = 0;  ///< equal in processes of a host that share the limit
};

/// What a rank finds when it starts.
struct ThreadFacts {
  std::string host;
  std::vector<int> cores;            ///< that it may run on, ascending, at least one
  int wanted = 0;                    ///< OMP_NUM_THREADS; 0: not given
  int granted = 0;                   ///< SLURM_CPUS_PER_TASK; 0: not given
  int most = kMostThreads;           ///< that OpenMP lets it have
  std::vector<std::string> binders;  ///< OMP_PROC_BIND and OpenMP's other words for places, given
  bool chooses_cores = false;        ///< one of them names cores or their number
  int host_cores = 0;        ///< what Open MPI's mpirun chose `cores` from; 0: not started by it
  CpuQuota quota;            ///< of its container or batch system
  std::vector<int> runs_on;  ///< cores that its threads may run on, once they run; empty: not yet
};

/// What a rank gets.
struct ThreadPlace {
  int threads = 1;
  std::vector<int> cores;  ///< all it may run on or, where `pinned`, as many of them as threads
  bool pinned = false;
};

/// Threads and cores of the ranks of one host, given in rank order.
///
/// Threads: `wanted`; else the rank's cores, shared evenly with the ranks that may run on one of
/// them, no more than `granted` and no more than its share of a quota; at least one, at most
/// `most`. Ranks with equal cores are pinned, each to a slice of its own, where the cores suffice
/// for all their threads and more than half of them are used: of fewer, another job of the same
/// kind may run on the others, and would be pinned to the same. A user who binds threads, or ranks
/// whose cores overlap in part, are left alone.
std::vector<ThreadPlace> place_threads(std::span<const ThreadFacts> ranks);

/// One line for every distinct situation of a host, e.g. "2 ranks x 1 thread, cores 0 | 1
/// (pinned)": what each host's ranks got, and what about it costs time. Cores are those that the
/// threads were found on where they run already.
std::vector<std::string> describe_threads(std::span<const ThreadFacts> ranks);

/// The threads of all ranks, from before Kokkos starts until they run.
class Threads {
 public:
  /// Chooses this rank's threads and cores, and pins the process to them. Collective.
  explicit Threads(comm::Communicator& world);
  int count() const { return place_.threads; }
  /// Pins the OpenMP threads of a started Kokkos to a core each. The calling thread keeps all of
  /// the rank's cores: threads that OpenMP makes anew inherit from it.
  void pin_workers() const;
  /// What describe_threads says of the threads as they run, on rank 0. Collective.
  std::vector<std::string> describe(comm::Communicator& world) const;

 private:
  ThreadPlace place_;
  std::vector<ThreadFacts> ranks_;  ///< of the world
};

/// Cores that a process without ranks may keep busy: those it may run on, within its quota.
int usable_cores();

/// The tightest limit of this process's control group and those around it, of cgroup v1
/// (cpu.cfs_quota_us) and v2 (cpu.max). None where the system has no control groups.
/// @param root  before every path that is read: a test's own files; empty: the system's
CpuQuota cpu_quota(const std::string& root = "");

}  // namespace cadenza::app
