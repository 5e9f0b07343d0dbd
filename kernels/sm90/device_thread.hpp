// SPDX-License-Identifier: Apache-2.0
// A thread of a block on Hopper: operations of this folder's kernels that C++ cannot express, as
// PTX of sm_90a. tests/unit/kernels/emulated_hopper.hpp has a thread with the same interface on the
// host.
#pragma once

#include "../device/thread.hpp"
#include "multiply.hpp"
#include "problem.hpp"

namespace cadenza::kernels::sm90 {

/// A barrier in shared memory; a phase ends when all expected arrivals and bytes have come.
using Barrier = std::uint64_t;

class DeviceThread : public device::DeviceThread {
 public:
  __device__ __forceinline__ int index() const { return static_cast<int>(threadIdx.x); }
  __device__ __forceinline__ void block_barrier() const { __syncthreads(); }
  /// Synchronises `threads` threads that name the same barrier; arrive() does not wait for the
  /// others.
  __device__ __forceinline__ void sync(int barrier, int threads) const {
    asm volatile("bar.sync %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
  }
  __device__ __forceinline__ void arrive(int barrier, int threads) const {
    asm volatile("bar.arrive %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
  }

  /// Sets the number of registers of a warpgroup's threads from here on.
  template <int kRegisters>
  __device__ __forceinline__ void release_registers() const {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
  }
  template <int kRegisters>
  __device__ __forceinline__ void take_registers() const {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
  }

  __device__ __forceinline__ void initialize(Barrier* barrier, int arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(address(barrier)), "r"(arrivals)
                 : "memory");
  }
  /// Makes initialised barriers visible to the copy engine; a block_barrier makes them visible to
  /// threads.
  __device__ __forceinline__ void publish_barriers() const {
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  }
  __device__ __forceinline__ void arrive(Barrier* barrier) const {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(address(barrier)) : "memory");
  }
  /// Arrives, and makes the phase also wait for so many bytes of the copy engine.
  __device__ __forceinline__ void arrive_expecting(Barrier* barrier, int bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(address(barrier)),
                 "r"(bytes)
                 : "memory");
  }
  /// Arrives once this thread's copies of single numbers so far have completed.
  __device__ __forceinline__ void arrive_when_copied(Barrier* barrier) const {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(address(barrier))
                 : "memory");
  }
  /// Waits until the phase of this parity has ended.
  __device__ __forceinline__ void wait(Barrier* barrier, int parity) const {
    asm volatile(
        "{\n"
        ".reg .pred ended;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
        "@!ended bra again;\n"
        "}\n" ::"r"(address(barrier)),
        "r"(parity)
        : "memory");
  }

  /// Makes a block fetch a map again that the host has copied to global memory.
  __device__ __forceinline__ void acquire(const TensorMap* map) const {
    asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;\n" ::"l"(map) : "memory");
  }
  /// Copies 64 elements from `column` on of the map's tile of rows from `row` on to a panel; counts
  /// the bytes on the barrier.
  __device__ __forceinline__ void copy_panel(void* panel, const TensorMap* map, Barrier* barrier,
                                             int column, int head, int row) const {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%3, %4, %5}], [%2];\n" ::"r"(address(panel)),
        "l"(map), "r"(address(barrier)), "r"(column), "r"(head), "r"(row)
        : "memory");
  }

  /// Required before a warpgroup's first product, and before one whose registers were written.
  __device__ __forceinline__ void begin_products() const {
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
  }
  /// Computes sums [64, N] = (add ? sums : 0) + left right; both factors in shared memory, depth
  /// 16.
  template <int kFragments>
  __device__ __forceinline__ void multiply(float (&sums)[kFragments][4], std::uint64_t left,
                                           std::uint64_t right, bool add) const {
    multiply_shared(sums, left, right, add ? 1 : 0);
  }
  /// Multiplies a left factor in registers; the right one's depth is its rows (columns_factor).
  template <int kFragments>
  __device__ __forceinline__ void multiply(float (&sums)[kFragments][4], const unsigned (&left)[4],
                                           std::uint64_t right) const {
    multiply_registers(sums, left, right);
  }
  /// Ends a group of products.
  __device__ __forceinline__ void commit_products() const {
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
  }
  /// Waits until all groups but the last kLater have ended; `sums` belong to these.
  template <int kLater, int kFragments>
  __device__ __forceinline__ void wait_products(float (&sums)[kFragments][4]) const {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kLater) : "memory");
    pin(sums);
  }
  /// Ends a basic block. ptxas moves a wait for products to the beginning of its block, before the
  /// exponentials that should overlap with the products. The branch is never taken, which ptxas
  /// does not know.
  __device__ __forceinline__ void end_basic_block(float not_negative) const {
    if (__any_sync(0xffffffffu, not_negative < 0) != 0) asm volatile("exit;\n" ::: "memory");
  }
  /// Keeps the compiler from moving reads or writes of sums across this line.
  template <int kFragments>
  __device__ __forceinline__ void pin(float (&sums)[kFragments][4]) const {
    CADENZA_UNROLL
    for (int tile = 0; tile < kFragments; ++tile) {
      asm volatile(""
                   : "+f"(sums[tile][0]), "+f"(sums[tile][1]), "+f"(sums[tile][2]),
                     "+f"(sums[tile][3])::"memory");
    }
  }

  /// Takes the next free unit, for all lanes of a warp.
  __device__ __forceinline__ int take(int* counter) const {
    int taken = 0;
    if (threadIdx.x % 32 == 0) taken = atomicAdd(counter, 1);
    return __shfl_sync(0xffffffffu, taken, 0);
  }
  /// Returns a descriptor, the same in all lanes, in the uniform registers from which products take
  /// it. Its upper half is a constant.
  __device__ __forceinline__ std::uint64_t uniform(std::uint64_t descriptor) const {
    const unsigned low = __shfl_sync(0xffffffffu, static_cast<unsigned>(descriptor), 0);
    return descriptor >> 32 << 32 | low;
  }
  /// Returns an address as products take it.
  __device__ __forceinline__ unsigned shared_address(const void* shared) const {
    return address(shared);
  }
};

}  // namespace cadenza::kernels::sm90
