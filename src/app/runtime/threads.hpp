// SPDX-License-Identifier: Apache-2.0
// Number of threads of a rank, and their cores, within the quota of its container: chosen when a
// session starts, before Kokkos does.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cadenza/comm/communicator.hpp"

namespace cadenza::app {

/// Limit of a rank: Kokkos keeps OpenMP's threads in an array of this size and does not check
/// bounds.
inline constexpr int kMostThreads = 512;

/// Limit that a container or batch system sets on the processor time of a process, whatever number
/// of cores it may run on.
struct CpuQuota {
  double cores = 0;         ///< seconds of processor time in a second; 0: no limit
  std::uint64_t group = 0;  ///< equal in all processes of a host that share the limit
};

/// What a rank knows about threads when it starts.
struct ThreadFacts {
  std::string host;
  std::vector<int> cores;            ///< those it may run on, ascending, at least one
  int wanted = 0;                    ///< OMP_NUM_THREADS; 0: unset
  int granted = 0;                   ///< SLURM_CPUS_PER_TASK; 0: unset
  int most = kMostThreads;           ///< OpenMP's limit
  std::vector<std::string> binders;  ///< variables that bind threads: OMP_PROC_BIND and others
  bool chooses_cores = false;        ///< one of the binders names cores or their number
  int host_cores = 0;  ///< cores from which Open MPI's mpirun chose `cores`; 0: not started by it
  CpuQuota quota;      ///< of its container or batch system
  std::vector<int> runs_on;  ///< cores that its running threads may use; empty: not started yet
};

/// Threads and cores that a rank gets.
struct ThreadPlace {
  int threads = 1;
  std::vector<int> cores;  ///< all it may run on or, if `pinned`, one per thread
  bool pinned = false;
};

/// Assigns threads and cores to the ranks of one host, given in rank order.
///
/// A rank gets `wanted` threads; otherwise its cores, shared evenly with the ranks that may run on
/// one of them, but no more than `granted` or its share of a quota; at least one, at most `most`.
/// Ranks with equal cores are pinned to separate slices if the cores suffice for all their threads
/// and more than half of them are used: otherwise another job of the same kind may run on the
/// others, and would be pinned to the same ones. Nothing is pinned if the user binds threads or if
/// ranks' cores overlap partially.
std::vector<ThreadPlace> place_threads(std::span<const ThreadFacts> ranks);

/// Describes every distinct situation of a host in one line, e.g. "2 ranks x 1 thread, cores 0 | 1
/// (pinned)", and what costs time in it. Once threads run, cores are those on which they were
/// found.
std::vector<std::string> describe_threads(std::span<const ThreadFacts> ranks);

/// The threads of all ranks, from before Kokkos starts until they run.
class Threads {
 public:
  /// Chooses this rank's threads and cores and pins the process to them. Collective.
  explicit Threads(comm::Communicator& world);
  int count() const { return place_.threads; }
  /// Pins each OpenMP thread of a started Kokkos to a core. The calling thread keeps all of the
  /// rank's cores, since threads that OpenMP creates later inherit them.
  void pin_workers() const;
  /// Returns describe_threads() of the running threads, on rank 0. Collective.
  std::vector<std::string> describe(comm::Communicator& world) const;

 private:
  ThreadPlace place_;
  std::vector<ThreadFacts> ranks_;  ///< of all ranks of the world
};

/// Number of cores that a process without ranks may use, within its quota.
int usable_cores();

/// Returns the tightest limit of this process's control group and its ancestors, in cgroup v1
/// (cpu.cfs_quota_us) and v2 (cpu.max). None if the system has no control groups.
/// @param root  prefix of every path that is read: a test's own files; empty: the system's
CpuQuota cpu_quota(const std::string& root = "");

}  // namespace cadenza::app
