// SPDX-License-Identifier: Apache-2.0
// The program fuzz_hdf5: readers of HDF5 files.
#include <spdlog/spdlog.h>

#include <Kokkos_Core.hpp>
#include <cstdlib>

#include "cadenza/comm/communicator.hpp"
#include "mutate_hdf5.hpp"
#include "readers.hpp"
#include "target.hpp"

namespace cadenza::fuzz {
namespace {

void start() {
  // attend asks MPI where it runs, on one rank too.
  static int argc = 0;
  static char** argv = nullptr;
  static const comm::MpiSession session(argc, argv, comm::MpiThreads::main);
  spdlog::set_level(spdlog::level::off);
  Kokkos::initialize(Kokkos::InitializationSettings().set_num_threads(1));
  std::atexit([] { Kokkos::finalize(); });
}

}  // namespace

std::span<const Target> targets() {
  static constexpr Target kTargets[] = {
      {"attention", read_attention, mutate_attention, start},
      {"index", read_index, mutate_index, start},
      {"checkpoint", read_checkpoint, mutate_checkpoint, start},
  };
  return kTargets;
}

}  // namespace cadenza::fuzz
