// SPDX-License-Identifier: Apache-2.0
// A thread of a block on Hopper: what the kernels of this folder do that C++ has no words for, as
// PTX of sm_90a. tests/unit/kernels/emulated_hopper.hpp has a second thread of the same interface,
// on the host.
#pragma once

#include <cuda_bf16.h>

#include "multiply.hpp"
#include "problem.hpp"

namespace cadenza::kernels::sm90 {

/// In shared memory; a phase ends when all expected arrivals and bytes are there.
using Barrier = std::uint64_t;

class DeviceThread {
 public:
  __device__ __forceinline__ int index() const { return static_cast<int>(threadIdx.x); }
  __device__ __forceinline__ void block_barrier() const { __syncthreads(); }
  __device__ __forceinline__ void warp_barrier() const { __syncwarp(); }
  /// Of `threads` threads that name the same barrier; arrive() does not wait for the others.
  __device__ __forceinline__ void sync(int barrier, int threads) const {
    asm volatile("bar.sync %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
  }
  __device__ __forceinline__ void arrive(int barrier, int threads) const {
    asm volatile("bar.arrive %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
  }

  /// Registers of a warpgroup's threads from here on.
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
  /// Initialised barriers are there for the copy engine; a block_barrier makes them so for threads.
  __device__ __forceinline__ void publish_barriers() const {
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  }
  __device__ __forceinline__ void arrive(Barrier* barrier) const {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(address(barrier)) : "memory");
  }
  /// Arrives, and makes the phase wait for so many bytes of the copy engine too.
  __device__ __forceinline__ void arrive_expecting(Barrier* barrier, int bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(address(barrier)),
                 "r"(bytes)
                 : "memory");
  }
  /// Arrives once this thread's copies of single numbers so far are there.
  __device__ __forceinline__ void arrive_when_copied(Barrier* barrier) const {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(address(barrier))
                 : "memory");
  }
  /// Until the phase of this parity has ended.
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

  /// A map that the host copied to global memory has to be fetched anew by a block that meets it.
  __device__ __forceinline__ void acquire(const TensorMap* map) const {
    asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;\n" ::"l"(map) : "memory");
  }
  /// 64 elements from `column` on of the map's tile of rows from `row` on, to a panel; counts bytes
  /// on the barrier.
  __device__ __forceinline__ void copy_panel(void* panel, const TensorMap* map, Barrier* barrier,
                                             int column, int head, int row) const {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%3, %4, %5}], [%2];\n" ::"r"(address(panel)),
        "l"(map), "r"(address(barrier)), "r"(column), "r"(head), "r"(row)
        : "memory");
  }
  /// One number; 0 where it is not `inside`.
  __device__ __forceinline__ void copy_number(float* to, const float* from, bool inside) const {
    const int bytes = inside ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(address(to)), "l"(from),
                 "r"(bytes)
                 : "memory");
  }

  /// Before a warpgroup's first product, and before one whose registers were written.
  __device__ __forceinline__ void begin_products() const {
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
  }
  /// sums [64, N] = (add ? sums : 0) + left right; both factors in shared memory, depth 16.
  template <int kTiles>
  __device__ __forceinline__ void multiply(float (&sums)[kTiles][4], std::uint64_t left,
                                           std::uint64_t right, bool add) const {
    multiply_shared(sums, left, right, add ? 1 : 0);
  }
  /// The same with a left factor in registers; the right one's depth is its rows (columns_factor).
  template <int kTiles>
  __device__ __forceinline__ void multiply(float (&sums)[kTiles][4], const unsigned (&left)[4],
                                           std::uint64_t right) const {
    multiply_registers(sums, left, right);
  }
  /// Ends a group of products.
  __device__ __forceinline__ void commit_products() const {
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
  }
  /// Until all groups but the last kLater have ended; `sums` are theirs.
  template <int kLater, int kTiles>
  __device__ __forceinline__ void wait_products(float (&sums)[kTiles][4]) const {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kLater) : "memory");
    pin(sums);
  }
  /// Ends a basic block. ptxas moves a wait for products up to the beginning of its block, past the
  /// exponentials that are to run beside the products. The branch is never taken, which ptxas does
  /// not know.
  __device__ __forceinline__ void end_basic_block(float not_negative) const {
    if (__any_sync(0xffffffffu, not_negative < 0) != 0) asm volatile("exit;\n" ::: "memory");
  }
  /// Keeps the compiler from moving what reads or writes sums across this line.
  template <int kTiles>
  __device__ __forceinline__ void pin(float (&sums)[kTiles][4]) const {
    CADENZA_MMA_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      asm volatile(""
                   : "+f"(sums[tile][0]), "+f"(sums[tile][1]), "+f"(sums[tile][2]),
                     "+f"(sums[tile][3])::"memory");
    }
  }

  /// The next unit that nobody has taken, for all lanes of a warp.
  __device__ __forceinline__ int take(int* counter) const {
    int taken = 0;
    if (threadIdx.x % 32 == 0) taken = atomicAdd(counter, 1);
    return __shfl_sync(0xffffffffu, taken, 0);
  }
  /// The value of the lane whose number differs in `bits`.
  __device__ __forceinline__ float exchanged(float value, int bits) const {
    return __shfl_xor_sync(0xffffffffu, value, bits);
  }
  /// A descriptor, the same in all lanes, for the uniform registers that products take it from. Its
  /// upper half is a constant.
  __device__ __forceinline__ std::uint64_t uniform(std::uint64_t descriptor) const {
    const unsigned low = __shfl_sync(0xffffffffu, static_cast<unsigned>(descriptor), 0);
    return descriptor >> 32 << 32 | low;
  }
  /// As a product takes it.
  __device__ __forceinline__ unsigned shared_address(const void* shared) const {
    return address(shared);
  }

  /// Within two units in the last place; 0 where the result would be subnormal.
  __device__ __forceinline__ float exp2(float x) const {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
  }
  __device__ __forceinline__ float exp(float x) const { return expf(x); }
  __device__ __forceinline__ float log(float x) const { return logf(x); }
  __device__ __forceinline__ float multiply_add(float a, float b, float c) const {
    return fmaf(a, b, c);
  }
  /// Two numbers as bfloat16, the first in the lower half.
  __device__ __forceinline__ unsigned pack(float low, float high) const {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
  }

 private:
  __device__ __forceinline__ static unsigned address(const void* shared) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared));
  }
};

}  // namespace cadenza::kernels::sm90
