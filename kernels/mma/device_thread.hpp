// SPDX-License-Identifier: Apache-2.0
// A thread of a block on a device: operations of this folder's kernels that C++ cannot express.
// tests/unit/kernels/emulated_block.hpp has a thread with the same interface on the host.
#pragma once

#include "../device/problem.hpp"
#include "../device/thread.hpp"

namespace cadenza::kernels::mma {

/// PTX of sm_80 and newer.
class DeviceThread : public device::DeviceThread {
 public:
  __device__ __forceinline__ DeviceThread() : index_(static_cast<int>(threadIdx.x)) {}
  __device__ __forceinline__ int index() const { return index_; }
  __device__ __forceinline__ void barrier() const {
    __syncthreads();
    // Hides the number from the compiler, which would otherwise keep all addresses of a tile for
    // the next one, in registers that sums need.
    asm volatile("" : "+r"(index_));
  }

  /// Copies 16 bytes to shared memory, present after the group's wait; zeros unless `inside`.
  __device__ __forceinline__ void copy(Bits* to, const Bits* from, bool inside) const {
    const int bytes = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address(to)), "l"(from),
                 "r"(bytes)
                 : "memory");
  }
  /// Ends a group of copies.
  __device__ __forceinline__ void commit() const {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
  }
  /// Waits for this thread's copies, except those of its last kLater groups.
  template <int kLater>
  __device__ __forceinline__ void wait() const {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(kLater) : "memory");
  }

  /// Loads four matrices of 8 x 8; lane l names a row of matrix l / 8.
  __device__ __forceinline__ void load(unsigned (&to)[4], const Bits* row) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address(row))
                 : "memory");
  }
  __device__ __forceinline__ void load_transposed(unsigned (&to)[4], const Bits* row) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address(row))
                 : "memory");
  }
  /// Computes sum [16, 8] += left [16, 16] right [16, 8].
  __device__ __forceinline__ void multiply_add(float (&sum)[4], const unsigned (&left)[4],
                                               unsigned right0, unsigned right1) const {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
  }
  /// Whether `of` is true in some lane of the warp.
  __device__ __forceinline__ bool any(bool of) const { return __any_sync(0xffffffffu, of) != 0; }

 private:
  mutable int index_;
};

}  // namespace cadenza::kernels::mma
