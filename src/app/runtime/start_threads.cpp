// SPDX-License-Identifier: Apache-2.0
// Reads what the system and the launcher say about cores, and pins threads to cores.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>
#include <type_traits>

#include "app/runtime/threads.hpp"
#include "cadenza/base/at.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace cadenza::app {
namespace {

constexpr long kLargestNumber = 1 << 20;

/// A mask with room for every core that Linux supports.
struct CoreMask {
  cpu_set_t words[8];
  cpu_set_t* data() { return words; }
  const cpu_set_t* data() const { return words; }
};

CoreMask mask_of(std::span<const int> cores) {
  CoreMask mask{};
  for (const int core : cores) CPU_SET_S(static_cast<std::size_t>(core), sizeof(mask), mask.data());
  return mask;
}

std::vector<int> cores_of(const CoreMask& mask) {
  std::vector<int> cores;
  for (std::size_t core = 0; core < 8 * sizeof(mask); ++core) {
    if (CPU_ISSET_S(core, sizeof(mask), mask.data())) cores.push_back(static_cast<int>(core));
  }
  return cores;
}

/// ThreadFacts that are sent between ranks.
struct PackedFacts {
  char host[64];
  CoreMask cores;
  int wanted;
  int granted;
  int most;
  unsigned binders;
  int chooses_cores;
  int host_cores;
  CpuQuota quota;
};
static_assert(std::is_trivially_copyable_v<PackedFacts>);

/// Returns the leading number of the first of these variables with one > 0; for a list, the number
/// of its outermost level.
int number_in_environment(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* text = std::getenv(name);
    const long value = text != nullptr ? std::strtol(text, nullptr, 10) : 0;
    if (value > 0) return static_cast<int>(std::min(value, kLargestNumber));
  }
  return 0;
}

/// Variables that bind threads: of the standard, GCC and LLVM.
constexpr std::array kBinders = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY",
                                 "KMP_AFFINITY"};

/// Returns a mask: bit i is set if kBinders[i] is set.
unsigned given_binders() {
  unsigned given = 0;
  for (std::size_t i = 0; i < kBinders.size(); ++i) {
    if (std::getenv(kBinders[i]) != nullptr) given |= 1U << i;
  }
  return given;
}

/// Whether a binder has digits: "{0}", "cores(2)" or "0-3", but not "cores" or "spread".
bool chooses_cores() {
  return std::ranges::any_of(kBinders, [](const char* name) {
    const char* text = std::getenv(name);
    return text != nullptr && std::strpbrk(text, "0123456789") != nullptr;
  });
}

/// Returns OpenMP's limit. Kokkos waits for as many threads as it asks for, so OpenMP must not give
/// fewer.
int most_threads() {
#ifdef _OPENMP
  omp_set_dynamic(0);
  omp_set_max_active_levels(std::max(1, omp_get_max_active_levels()));
  return std::clamp(omp_get_thread_limit(), 1, kMostThreads);
#else
  return 1;
#endif
}

/// Returns the cores on which this rank may run. If the user asked OpenMP to bind threads, it has
/// bound this thread already: then its places count too.
CoreMask own_cores() {
  CoreMask mask{};
  if (sched_getaffinity(0, sizeof(mask), mask.data()) != 0) {
    std::vector<int> all(std::max(1u, std::thread::hardware_concurrency()));
    std::iota(all.begin(), all.end(), 0);
    return mask_of(all);
  }
#ifdef _OPENMP
  for (int place = 0; place < omp_get_num_places(); ++place) {
    std::vector<int> ids(static_cast<std::size_t>(omp_get_place_num_procs(place)));
    omp_get_place_proc_ids(place, ids.data());
    for (const int id : ids) CPU_SET_S(static_cast<std::size_t>(id), sizeof(mask), mask.data());
  }
#endif
  return mask;
}

/// Returns the number of cores of the process that started this one.
int parents_cores() {
  CoreMask mask{};
  const bool known = sched_getaffinity(getppid(), sizeof(mask), mask.data()) == 0;
  return known ? CPU_COUNT_S(sizeof(mask), mask.data()) : 0;
}

PackedFacts find_facts(comm::Communicator& world) {
  PackedFacts facts{};
  std::strncpy(facts.host, comm::host_place(world).host.c_str(), sizeof(facts.host) - 1);
  facts.cores = own_cores();
  // KOKKOS_NUM_THREADS is Kokkos' own variable for it.
  facts.wanted = number_in_environment({"KOKKOS_NUM_THREADS", "OMP_NUM_THREADS"});
  facts.granted = number_in_environment({"SLURM_CPUS_PER_TASK"});
  facts.most = most_threads();
  facts.binders = given_binders();
  facts.chooses_cores = chooses_cores() ? 1 : 0;
  facts.quota = cpu_quota();
  const bool open_mpi = std::getenv("OMPI_COMM_WORLD_RANK") != nullptr;
  facts.host_cores = open_mpi ? parents_cores() : 0;
  return facts;
}

ThreadFacts unpack(const PackedFacts& packed) {
  ThreadFacts facts;
  facts.host = packed.host;
  facts.cores = cores_of(packed.cores);
  facts.wanted = packed.wanted;
  facts.granted = packed.granted;
  facts.most = packed.most;
  facts.quota = packed.quota;
  for (std::size_t i = 0; i < kBinders.size(); ++i) {
    if ((packed.binders >> i & 1U) != 0) facts.binders.emplace_back(kBinders[i]);
  }
  facts.chooses_cores = packed.chooses_cores != 0;
  facts.host_cores = packed.host_cores;
  return facts;
}

/// Pins the calling thread and those that it creates later. If the system refuses, it stays
/// unpinned.
void pin_thread(std::span<const int> cores) {
  const CoreMask mask = mask_of(cores);
  sched_setaffinity(0, sizeof(mask), mask.data());
}

/// Returns the cores to which all threads of this rank are bound now.
CoreMask cores_in_use() {
  CoreMask all{};
#ifdef _OPENMP
#pragma omp parallel
#endif
  {
    CoreMask mine{};
    if (sched_getaffinity(0, sizeof(mine), mine.data()) == 0) {
#ifdef _OPENMP
#pragma omp critical
#endif
      CPU_OR_S(sizeof(all), all.data(), all.data(), mine.data());
    }
  }
  return all;
}

template <typename T>
std::vector<T> gather(comm::Communicator& world, const T& mine) {
  std::vector<T> all(static_cast<std::size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

}  // namespace

Threads::Threads(comm::Communicator& world) {
  std::vector<ThreadFacts> here;
  std::size_t place = 0;
  for (const PackedFacts& facts : gather(world, find_facts(world))) {
    ranks_.push_back(unpack(facts));
  }
  const std::string& host = ranks_[at(world.rank())].host;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].host != host) continue;
    if (static_cast<int>(rank) == world.rank()) place = here.size();
    here.push_back(ranks_[rank]);
  }
  place_ = place_threads(here)[place];
  if (place_.pinned) pin_thread(place_.cores);
#ifdef _OPENMP
  omp_set_num_threads(place_.threads);  // Kokkos asks OpenMP before its own setting counts
#endif
}

void Threads::pin_workers() const {
#ifdef _OPENMP
  if (!place_.pinned) return;
#pragma omp parallel
  {
    const auto thread = static_cast<std::size_t>(omp_get_thread_num());
    if (thread > 0 && thread < place_.cores.size()) pin_thread({&place_.cores[thread], 1});
  }
#endif
}

std::vector<std::string> Threads::describe(comm::Communicator& world) const {
  const std::vector<CoreMask> found = gather(world, cores_in_use());
  if (world.rank() != 0) return {};
  std::vector<ThreadFacts> ranks = ranks_;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank].runs_on = cores_of(found[rank]);
  }
  return describe_threads(ranks);
}

int usable_cores() {
  const std::size_t cores = cores_of(own_cores()).size();
  const double quota = cpu_quota().cores;
  return std::max(1, static_cast<int>(quota > 0 ? std::min(quota, static_cast<double>(cores))
                                                : static_cast<double>(cores)));
}

}  // namespace cadenza::app
