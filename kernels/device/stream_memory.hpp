// SPDX-License-Identifier: Apache-2.0
// Memory of attention on the device's stream: allocated, filled and released in stream order, so
// that the host never waits and nothing is freed under a kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "check.hpp"

namespace cadenza::kernels::device {

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
  /// Copies `items`, which may be destroyed when the call returns.
  void copy(const std::vector<T>& items) {
    if (items.empty()) return;
    check(cudaMemcpyAsync(data_, items.data(), items.size() * sizeof(T), cudaMemcpyHostToDevice,
                          stream_),
          "tasks of attention");
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
