// SPDX-License-Identifier: Apache-2.0
// The program fuzz_hdf5: readers of HDF5 files.
#include <spdlog/spdlog.h>

#include <Kokkos_Core.hpp>
#include <cstdlib>

#include "mutate_hdf5.hpp"
#include "readers.hpp"
#include "target.hpp"

namespace cadenza::fuzz {
namespace {

void start() {
  spdlog::set_level(spdlog::level::off);
  Kokkos::initialize(Kokkos::InitializationSettings().set_num_threads(1));
  std::atexit([] { Kokkos::finalize(); });
}

}  // namespace

std::span<const Target> targets() {
  static constexpr Target kTargets[] = {
      {"attention", read_attention, mutate_attention, start},
      {"checkpoint", read_checkpoint, mutate_checkpoint, start},
  };
  return kTargets;
}

}  // namespace cadenza::fuzz
