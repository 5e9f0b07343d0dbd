// SPDX-License-Identifier: Apache-2.0
// Memory of attention on the device's stream: allocated, filled and released in stream order, so
// that the host never waits and nothing is freed under a kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "cadenza/kernels/device.hpp"
#include "check.hpp"
#include "copy_ring.hpp"

namespace cadenza::kernels::device {

/// The stream of a CopyRing: Device's.
class RingStream {
 public:
  RingStream() {
    for (cudaEvent_t& event : events_) {
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    }
  }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, Device().cuda_stream()),
          "tasks of attention");
  }
  void mark(bool half) const {
    check(cudaEventRecord(events_[half], Device().cuda_stream()), "cudaEventRecord");
  }
  void wait(bool half) const {
    // Copies of megabytes ago have nearly always run. The fence is watched.
    if (!has_ended(cudaEventQuery(events_[half]), "tasks of attention")) fence();
  }

 private:
  cudaEvent_t events_[2] = {};
};

/// The ring of all calls. It lives as long as the process: CUDA may be gone before it.
inline CopyRing<RingStream>& copy_ring() {
  constexpr std::size_t kBytes = std::size_t{8} << 20;
  static CopyRing<RingStream>& ring = *[] {
    void* memory = nullptr;
    check(cudaMallocHost(&memory, kBytes), "pinned memory of attention");
    return new CopyRing<RingStream>({static_cast<std::byte*>(memory), kBytes}, RingStream());
  }();
  return ring;
}

template <typename T>
class StreamArray {
 public:
  StreamArray() = default;
  StreamArray(std::size_t count, cudaStream_t stream) : stream_(stream) {
    if (count == 0) return;
    keep_pool();
    check(cudaMallocAsync(reinterpret_cast<void**>(&data_), count * sizeof(T), stream),
          "memory of attention");
  }
  ~StreamArray() {
    if (data_ != nullptr) cudaFreeAsync(data_, stream_);
  }
  StreamArray(StreamArray&& from) noexcept
      : stream_(from.stream_), data_(std::exchange(from.data_, nullptr)) {}
  StreamArray& operator=(StreamArray&& from) noexcept {
    std::swap(stream_, from.stream_);
    std::swap(data_, from.data_);
    return *this;
  }

  T* data() const { return data_; }
  /// Copies `items`, on Device's stream; they may be destroyed when the call returns.
  void copy(const std::vector<T>& items) {
    copy_ring().copy(reinterpret_cast<std::byte*>(data_), std::as_bytes(std::span(items)));
  }

 private:
  /// Keeps released memory for the next call instead of returning it to the system at each wait.
  static void keep_pool() {
    static const bool kept = [] {
      int device = 0;
      cudaMemPool_t pool = nullptr;
      check(cudaGetDevice(&device), "cudaGetDevice");
      check(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
      std::uint64_t all = ~std::uint64_t{0};
      check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all),
            "cudaMemPoolSetAttribute");
      return true;
    }();
    static_cast<void>(kept);
  }

  cudaStream_t stream_ = nullptr;
  T* data_ = nullptr;
};

/// The memory of a KeptArray.
struct StreamMemory {
  cudaStream_t stream = nullptr;

  template <typename T>
  using Array = StreamArray<T>;
  template <typename T>
  Array<T> allocate(std::size_t count) const {
    return {count, stream};
  }
  template <typename T>
  void copy(Array<T>& to, const std::vector<T>& items) const {
    to.copy(items);
  }
};

}  // namespace cadenza::kernels::device
