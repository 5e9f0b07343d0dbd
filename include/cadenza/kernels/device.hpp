// SPDX-License-Identifier: Apache-2.0
// Where kernels run and tensors live: Kokkos' default execution space of the build, and its memory
// or, in the preset `separate`, memory that the host cannot touch.
#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <functional>
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

/// Whether kernels run behind the calls that start them: the host's clock does not time them then.
#ifdef CADENZA_SEPARATE_MEMORY
inline constexpr bool kStreamRunsLater = true;
#else
inline constexpr bool kStreamRunsLater = kDeviceIsCuda;
#endif

/// Contiguous elements on the device.
template <typename T>
using Array = Kokkos::View<T*, DeviceMemory>;
/// The same elements where the host can read them (the array itself where device memory is the
/// host's).
template <typename T>
using HostArray = typename Array<T>::HostMirror;

/// Takes note of work that was put on a late stream.
void count_work();

/// Puts work(inputs...) on the device's stream: it runs after what was put there before it. Where
/// device memory is separate it need not have begun when the call returns, and the inputs are
/// copied; where device memory is the host's, it has ended.
template <typename Work, typename... Inputs>
void enqueue(const Work& work, const Inputs&... inputs) {
#ifdef CADENZA_SEPARATE_MEMORY
  separate_memory::defer([=] { work(inputs...); });
#else
  work(inputs...);
#endif
  if constexpr (kStreamRunsLater) count_work();
}

/// A kernel on the stream. All kernels start here.
template <typename Policy, typename Functor>
void launch(const char* label, const Policy& policy, const Functor& functor) {
#ifdef CADENZA_SEPARATE_MEMORY
  separate_memory::defer([=] { Kokkos::parallel_for(label, policy, functor); });
#else
  Kokkos::parallel_for(label, policy, functor);
#endif
  if constexpr (kStreamRunsLater) count_work();
}

/// How a host waits for its device where it is watched: returns when done(), which is asked again
/// and again, says true.
using DeviceWait = std::function<void(const std::function<bool()>& done)>;

/// Fences wait as it says, as long as it lives; one at a time. A device that waits for another rank
/// for ever would otherwise stop its host where nobody sees it. A fence is several waits, one after
/// another, each for some more of the work on the stream: no limit of a wait is one of all the
/// work.
class DeviceWaitScope {
 public:
  explicit DeviceWaitScope(DeviceWait wait);
  ~DeviceWaitScope();
  DeviceWaitScope(const DeviceWaitScope&) = delete;
  DeviceWaitScope& operator=(const DeviceWaitScope&) = delete;
};

/// fence() where the stream runs later.
void wait_for_device();

/// Waits for the stream: before the host or MPI reads what kernels wrote. Copies with
/// Kokkos::deep_copy wait by themselves, as a fence does. Free where device memory is the host's.
inline void fence() {
  if constexpr (kStreamRunsLater) wait_for_device();
}

/// Copies, after the kernels that were put on the stream before, and waits for that: for nothing
/// else that the device has under way, as Kokkos' copies without a stream do.
template <typename To, typename From>
void copy_and_wait(const To& to, const From& from) {
  fence();  // a copy to memory that is not pinned would wait for the stream itself, unwatched
  Kokkos::deep_copy(Device(), to, from);
  fence();
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
