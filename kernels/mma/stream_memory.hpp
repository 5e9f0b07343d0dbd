// SPDX-License-Identifier: Apache-2.0
// Memory of one call on the device's stream: taken, filled and given back in the stream's order, so
// that the host waits for nothing and nothing is freed under a kernel.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <vector>

#include "cadenza/base/error.hpp"

namespace cadenza::kernels::mma {

template <typename T>
class StreamArray {
 public:
  StreamArray(std::size_t count, cudaStream_t stream) : stream_(stream) {
    if (count == 0) return;
    keep_pool();
    check(cudaMallocAsync(reinterpret_cast<void**>(&data_), count * sizeof(T), stream),
          "memory of attention");
  }
  /// A copy: `items` may go when the call returns.
  StreamArray(const std::vector<T>& items, cudaStream_t stream)
      : StreamArray(items.size(), stream) {
    if (items.empty()) return;
    check(cudaMemcpyAsync(data_, items.data(), items.size() * sizeof(T), cudaMemcpyHostToDevice,
                          stream),
          "tasks of attention");
  }
  ~StreamArray() {
    if (data_ != nullptr) cudaFreeAsync(data_, stream_);
  }
  StreamArray(const StreamArray&) = delete;
  StreamArray& operator=(const StreamArray&) = delete;

  T* data() const { return data_; }

 private:
  static void check(cudaError_t status, const char* what) {
    if (status != cudaSuccess) fail(ExitCode::internal, "{}: {}", what, cudaGetErrorString(status));
  }

  /// What was given back is kept for the next call, not returned to the system at each wait.
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

  cudaStream_t stream_;
  T* data_ = nullptr;
};

}  // namespace cadenza::kernels::mma
