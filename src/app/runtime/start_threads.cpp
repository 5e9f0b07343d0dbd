// SPDX-License-Identifier: Apache-2.0
// What the system and the launcher say about cores, and pinning to them.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>
#include <type_traits>

#include "threads.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace cadenza::app {
namespace {

constexpr long kMostThreads = 1 << 20;

/// Room for every core that Linux can have.
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

/// ThreadFacts as they travel.
struct PackedFacts {
  char host[64];
  CoreMask cores;
  int wanted;
  int granted;
  int user_binds;
  int host_cores;
};
static_assert(std::is_trivially_copyable_v<PackedFacts>);

/// The leading number of the first of these variables that has one > 0; of a list, that of its
/// outermost level.
int number_in_environment(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* text = std::getenv(name);
    const long value = text != nullptr ? std::strtol(text, nullptr, 10) : 0;
    if (value > 0) return static_cast<int>(std::min(value, kMostThreads));
  }
  return 0;
}

bool user_binds() {
  return std::getenv("OMP_PROC_BIND") != nullptr || std::getenv("OMP_PLACES") != nullptr;
}

/// The cores this rank may run on. OpenMP has bound this thread already where the user asked for
/// it: then its places count too.
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

/// Cores of the process that started this one.
int parents_cores() {
  CoreMask mask{};
  const bool known = sched_getaffinity(getppid(), sizeof(mask), mask.data()) == 0;
  return known ? CPU_COUNT_S(sizeof(mask), mask.data()) : 0;
}

PackedFacts find_facts(comm::Communicator& world) {
  PackedFacts facts{};
  std::strncpy(facts.host, comm::host_place(world).host.c_str(), sizeof(facts.host) - 1);
  facts.cores = own_cores();
  // KOKKOS_NUM_THREADS is Kokkos' own word for the same.
  facts.wanted = number_in_environment({"KOKKOS_NUM_THREADS", "OMP_NUM_THREADS"});
  facts.granted = number_in_environment({"SLURM_CPUS_PER_TASK"});
  facts.user_binds = user_binds() ? 1 : 0;
  const bool open_mpi = std::getenv("OMPI_COMM_WORLD_RANK") != nullptr;
  facts.host_cores = open_mpi ? parents_cores() : 0;
  return facts;
}

ThreadFacts unpack(const PackedFacts& packed) {
  ThreadFacts facts;
  facts.host = packed.host;
  for (std::size_t core = 0; core < 8 * sizeof(CoreMask); ++core) {
    if (CPU_ISSET_S(core, sizeof(CoreMask), packed.cores.data())) {
      facts.cores.push_back(static_cast<int>(core));
    }
  }
  facts.wanted = packed.wanted;
  facts.granted = packed.granted;
  facts.user_binds = packed.user_binds != 0;
  facts.host_cores = packed.host_cores;
  return facts;
}

/// The calling thread and those it makes from now on. A system that refuses leaves it unpinned.
void pin_thread(std::span<const int> cores) {
  const CoreMask mask = mask_of(cores);
  sched_setaffinity(0, sizeof(mask), mask.data());
}

}  // namespace

ThreadPlace start_threads(comm::Communicator& world, std::vector<std::string>& lines) {
  const PackedFacts mine = find_facts(world);
  std::vector<PackedFacts> all(static_cast<std::size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  std::vector<ThreadFacts> ranks;
  std::vector<ThreadFacts> here;
  std::size_t place = 0;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    ranks.push_back(unpack(all[rank]));
    if (ranks.back().host != mine.host) continue;
    if (static_cast<int>(rank) == world.rank()) place = here.size();
    here.push_back(ranks.back());
  }
  if (world.rank() == 0) lines = describe_threads(ranks);
  ThreadPlace result = place_threads(here)[place];
  if (result.pinned) pin_thread(result.cores);
  return result;
}

void pin_workers([[maybe_unused]] const ThreadPlace& place) {
#ifdef _OPENMP
  if (!place.pinned) return;
#pragma omp parallel
  {
    const auto thread = static_cast<std::size_t>(omp_get_thread_num());
    if (thread > 0 && thread < place.cores.size()) pin_thread({&place.cores[thread], 1});
  }
#endif
}

}  // namespace cadenza::app
