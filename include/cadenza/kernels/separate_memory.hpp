// SPDX-License-Identifier: Apache-2.0
// Memory and stream of a build for the host that behave as a GPU's do (preset `separate`). Arrays
// lie in an arena that the host cannot read or write outside of kernels, copies and library calls;
// mirrors are other memory; new arrays hold NaNs; kernels run when somebody waits for them. What
// forgets a copy or a wait, hands a device pointer to MPI or reads an array on the host then fails
// on every machine, not only on one with a device.
#pragma once

#include <Kokkos_Core.hpp>
#include <cstddef>
#include <cstring>
#include <functional>

namespace cadenza {

/// The arena is open to the host while one of these lives: for work of the stream and Kokkos' own
/// copies it is. Only code that bypasses both takes one.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

/// A Kokkos memory space. Its kernels run on the host.
class SeparateMemory {
 public:
  using memory_space = SeparateMemory;
  using execution_space = Kokkos::DefaultExecutionSpace;
  using device_type = Kokkos::Device<execution_space, memory_space>;
  using size_type = std::size_t;
  static constexpr const char* name() { return "Separate"; }

  void* allocate(std::size_t bytes) const { return allocate("", bytes); }
  void* allocate(const char* label, std::size_t bytes, std::size_t logical = 0) const;
  template <typename Space>
  void* allocate(const Space&, const char* label, std::size_t bytes,
                 std::size_t logical = 0) const {
    return allocate(label, bytes, logical);
  }
  void deallocate(void* at, std::size_t bytes) const { deallocate("", at, bytes); }
  void deallocate(const char* label, void* at, std::size_t bytes, std::size_t logical = 0) const;
};

namespace separate_memory {

/// The stream of this build, one for all threads: it runs nothing until somebody waits for it
/// (fence(), a copy with Kokkos::deep_copy, making or releasing an array). What reads results
/// without waiting, or frees or changes on the host what kernels still need, fails in every run, as
/// it would now and then on a device.
void defer(std::function<void()> work);
/// Runs the next of what was deferred. @returns false where nothing is left
bool run_next();
/// Runs all of it, in order.
void run_deferred();

/// Kokkos constructs one per copy of bytes, with an execution space before them or without.
struct Copy {
  Copy(void* to, const void* from, std::size_t bytes) {
    run_deferred();
    const DeviceAccess access;
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  template <typename Space>
  Copy(const Space&, void* to, const void* from, std::size_t bytes) : Copy(to, from, bytes) {}
};

}  // namespace separate_memory
}  // namespace cadenza

// What Kokkos asks of a memory space that the host cannot reach, as its own spaces of devices say
// it (Kokkos 4.7, Kokkos_CudaSpace.hpp).
namespace Kokkos {

template <>
struct SpaceAccessibility<DefaultExecutionSpace, cadenza::SeparateMemory> {
  enum { accessible = true };
  enum { assignable = false };
  enum { deepcopy = true };
  using space = Kokkos::Device<DefaultExecutionSpace, cadenza::SeparateMemory>;
};

namespace Impl {

template <>
struct MemorySpaceAccess<HostSpace, cadenza::SeparateMemory> {
  enum : bool { assignable = false };
  enum : bool { accessible = false };
  enum : bool { deepcopy = true };
};
template <>
struct MemorySpaceAccess<cadenza::SeparateMemory, HostSpace> {
  enum : bool { assignable = false };
  enum : bool { accessible = false };
  enum : bool { deepcopy = true };
};

template <typename Space>
struct DeepCopy<cadenza::SeparateMemory, HostSpace, Space> : cadenza::separate_memory::Copy {
  using cadenza::separate_memory::Copy::Copy;
};
template <typename Space>
struct DeepCopy<HostSpace, cadenza::SeparateMemory, Space> : cadenza::separate_memory::Copy {
  using cadenza::separate_memory::Copy::Copy;
};
template <typename Space>
struct DeepCopy<cadenza::SeparateMemory, cadenza::SeparateMemory, Space>
    : cadenza::separate_memory::Copy {
  using cadenza::separate_memory::Copy::Copy;
};

}  // namespace Impl
}  // namespace Kokkos

KOKKOS_IMPL_HOST_INACCESSIBLE_SHARED_ALLOCATION_SPECIALIZATION(cadenza::SeparateMemory);
#define KOKKOS_IMPL_PUBLIC_INCLUDE
#include <impl/Kokkos_SharedAlloc_timpl.hpp>
#undef KOKKOS_IMPL_PUBLIC_INCLUDE
