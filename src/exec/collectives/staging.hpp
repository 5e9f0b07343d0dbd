// SPDX-License-Identifier: Apache-2.0
// Host memory through which messages between devices pass.
#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <bit>
#include <cstddef>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "cadenza/kernels/device.hpp"

namespace cadenza::exec {

/// Blocks of pinned memory, which a device copies from and to directly. Blocks whose lease ended
/// are reused: pinning is slow, and happens only when more is under way than ever before.
class Staging {
  using Pinned = Kokkos::SharedHostPinnedSpace;
  using Memory = Kokkos::View<std::byte*, Pinned>;

  template <typename T, typename Space>
  using Unmanaged = Kokkos::View<T*, Space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

  /// Puts a copy on the stream.
  template <typename To, typename From>
  static void copy(std::span<std::byte> to, std::span<const std::byte> from) {
    if (from.empty()) return;
    enqueue([=] {
      Kokkos::deep_copy(Device(), Unmanaged<std::byte, To>(to.data(), to.size()),
                        Unmanaged<const std::byte, From>(from.data(), from.size()));
    });
  }

 public:
  /// The block of one message during its lifetime. The Staging must outlive it.
  class Lease {
   public:
    Lease(Staging& owner, Memory block, std::size_t size)
        : owner_(&owner), block_(std::move(block)), size_(size) {}
    ~Lease() {
      if (owner_ != nullptr) owner_->free_[block_.extent(0)].push_back(std::move(block_));
    }
    Lease(Lease&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)),
          block_(std::move(other.block_)),
          size_(other.size_) {}
    Lease& operator=(Lease&&) = delete;

    std::span<std::byte> bytes() const { return {block_.data(), size_}; }

   private:
    Staging* owner_;
    Memory block_;
    std::size_t size_;
  };

  Lease take(std::size_t bytes) {
    constexpr std::size_t kLeast = 4096;
    const std::size_t size = std::bit_ceil(std::max(bytes, kLeast));
    std::vector<Memory>& free = free_[size];
    if (free.empty()) {
      fence();  // pinning may wait for the device, unwatched
      free.emplace_back(Kokkos::view_alloc("staging", Kokkos::WithoutInitializing), size);
    }
    Memory block = std::move(free.back());
    free.pop_back();
    return {*this, std::move(block), bytes};
  }
  /// Puts a copy from device memory on the stream: call fence() before the host reads it.
  Lease copy_in(std::span<const std::byte> device) {
    Lease lease = take(device.size());
    copy<Pinned, DeviceMemory>(lease.bytes(), device);
    return lease;
  }
  /// Puts a copy into device memory on the stream: call fence() before the host writes to the block
  /// again, under any lease.
  static void copy_out(const Lease& from, std::span<std::byte> device) {
    copy<DeviceMemory, Pinned>(device, from.bytes());
  }

 private:
  std::map<std::size_t, std::vector<Memory>> free_;  ///< by size
};

}  // namespace cadenza::exec
