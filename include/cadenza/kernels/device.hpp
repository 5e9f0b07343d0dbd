// SPDX-License-Identifier: Apache-2.0
// Where kernels run and tensors live: Kokkos' default execution space of the build.
#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <string>

#include "cadenza/base/memory.hpp"

namespace cadenza {

using Device = Kokkos::DefaultExecutionSpace;
using DeviceMemory = Device::memory_space;

#ifdef KOKKOS_ENABLE_CUDA
inline constexpr bool kDeviceIsCuda = true;
#else
inline constexpr bool kDeviceIsCuda = false;
#endif

/// Contiguous elements on the device.
template <typename T>
using Array = Kokkos::View<T*, DeviceMemory>;
/// The same elements where the host can read them (the array itself on a host build).
template <typename T>
using HostArray = typename Array<T>::HostMirror;

/// Waits for the device; free on a host build.
inline void fence() {
  if constexpr (!Kokkos::SpaceAccessibility<Kokkos::HostSpace, DeviceMemory>::accessible) {
    Kokkos::fence();
  }
}

/// Allocates `count` zeroed elements and enters them in the ledger under `kind`.
template <typename T>
Array<T> allocate(MemoryLedger& ledger, MemoryKind kind, const std::string& label,
                  std::int64_t count) {
  ledger.add(kind, count * static_cast<std::int64_t>(sizeof(T)));
  return Array<T>(label, static_cast<std::size_t>(count));
}

}  // namespace cadenza
