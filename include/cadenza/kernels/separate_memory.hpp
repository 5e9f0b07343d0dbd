// SPDX-License-Identifier: Apache-2.0
// Memory and stream of a host build that behave like a GPU's (preset `separate`). Arrays lie in an
// arena that the host can access only in kernels, copies and library calls; mirrors are other
// memory; new arrays hold NaNs; kernels run only when somebody waits for them. So code that forgets
// a copy or a wait, hands a device pointer to MPI or reads an array on the host fails on every
// machine, not only on one with a device.
#pragma once

#include <Kokkos_Core.hpp>
#include <cstddef>
#include <cstring>
#include <functional>

namespace cadenza {

/// Opens the arena to the host during its lifetime. The stream's work and Kokkos' own copies open
/// it themselves; only code that bypasses both needs one.
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

/// Puts work on the stream of this build, one for all threads, which runs nothing until somebody
/// waits for it (fence(), a copy with Kokkos::deep_copy, making or releasing an array). So code
/// that reads results without waiting, or frees or changes host data that kernels still need, fails
/// in every run, as it would occasionally on a device.
void defer(std::function<void()> work);
/// Runs the next deferred work. @returns false if none is left
bool run_next();
/// Runs all deferred work, in order.
void run_deferred();

/// Copies bytes: Kokkos constructs one per copy, with or without an execution space.
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

// Specialisations that Kokkos needs for a memory space that the host cannot access, as for its own
// device spaces (Kokkos 4.7, Kokkos_CudaSpace.hpp).
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
