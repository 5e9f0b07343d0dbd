// SPDX-License-Identifier: Apache-2.0
// Where kernels run and tensors are stored: Kokkos' default execution space of the build, and its
// memory or, in the preset `separate`, memory that the host cannot access.
#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "cadenza/base/memory.hpp"
#ifdef CADENZA_SEPARATE_MEMORY
#include "cadenza/kernels/separate_memory.hpp"
#endif

namespace cadenza {

using Device = Kokkos::DefaultExecutionSpace;
#ifdef CADENZA_SEPARATE_MEMORY
using DeviceMemory = SeparateMemory;
#else
using DeviceMemory = Device::memory_space;
#endif

#ifdef KOKKOS_ENABLE_CUDA
inline constexpr bool kDeviceIsCuda = true;
#else
inline constexpr bool kDeviceIsCuda = false;
#endif

/// Whether kernels run after the calls that start them, so that the host's clock does not time
/// them.
#ifdef CADENZA_SEPARATE_MEMORY
inline constexpr bool kStreamRunsLater = true;
#else
inline constexpr bool kStreamRunsLater = kDeviceIsCuda;
#endif

/// Contiguous elements on the device.
template <typename T>
using Array = Kokkos::View<T*, DeviceMemory>;
/// Elements of an Array in memory that the host can read (the array itself if device memory is the
/// host's).
template <typename T>
using HostArray = typename Array<T>::HostMirror;

/// Counts work put on a stream that runs later.
void count_work();

/// Puts work(inputs...) on the device's stream, after all earlier work there. If device memory is
/// separate, the work may not have begun when the call returns, and the inputs are copied; if
/// device memory is the host's, it has ended.
template <typename Work, typename... Inputs>
void enqueue(const Work& work, const Inputs&... inputs) {
#ifdef CADENZA_SEPARATE_MEMORY
  separate_memory::defer([=] { work(inputs...); });
#else
  work(inputs...);
#endif
  if constexpr (kStreamRunsLater) count_work();
}

/// Puts a kernel on the stream. All kernels start here.
template <typename Policy, typename Functor>
void launch(const char* label, const Policy& policy, const Functor& functor) {
#ifdef CADENZA_SEPARATE_MEMORY
  separate_memory::defer([=] { Kokkos::parallel_for(label, policy, functor); });
#else
  Kokkos::parallel_for(label, policy, functor);
#endif
  if constexpr (kStreamRunsLater) count_work();
}

/// Waits on the host until done(), which it polls, returns true; this wait is watched.
using DeviceWait = std::function<void(const std::function<bool()>& done)>;

/// Makes fences use `wait` during its lifetime; one scope at a time. Otherwise a device that waits
/// for another rank forever would stop its host unnoticed. A fence is several waits in sequence,
/// each for a part of the work on the stream, so a limit on a wait does not limit all the work.
class DeviceWaitScope {
 public:
  explicit DeviceWaitScope(DeviceWait wait);
  ~DeviceWaitScope();
  DeviceWaitScope(const DeviceWaitScope&) = delete;
  DeviceWaitScope& operator=(const DeviceWaitScope&) = delete;
};

/// Implements fence() if the stream runs later.
void wait_for_device();

/// Waits for the stream. Call it before the host or MPI reads what kernels wrote. Copies with
/// Kokkos::deep_copy wait by themselves. Free if device memory is the host's.
inline void fence() {
  if constexpr (kStreamRunsLater) wait_for_device();
}

/// Copies after the earlier work on the stream, and waits for the copy. Does not wait for other
/// work of the device, as Kokkos' copies without a stream do.
template <typename To, typename From>
void copy_and_wait(const To& to, const From& from) {
  fence();  // an unpinned copy would wait for the stream itself, unwatched
  Kokkos::deep_copy(Device(), to, from);
  fence();
}

/// Copies values from host memory to `to`, and waits.
template <typename T>
void copy_in(std::span<const T> values, T* to) {
  using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
  copy_and_wait(Kokkos::View<T*, DeviceMemory, Unmanaged>(to, values.size()),
                Kokkos::View<const T*, Kokkos::HostSpace, Unmanaged>(values.data(), values.size()));
}

/// Allocates `count` zeroed elements and enters them in the ledger under `kind`.
template <typename T>
Array<T> allocate(MemoryLedger& ledger, MemoryKind kind, const std::string& label,
                  std::int64_t count) {
  fence();  // an allocation may wait for the device, unwatched
  ledger.add(kind, count * static_cast<std::int64_t>(sizeof(T)));
  return Array<T>(label, static_cast<std::size_t>(count));
}

}  // namespace cadenza
