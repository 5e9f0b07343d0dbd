// SPDX-License-Identifier: Apache-2.0
// A thread of a block on a device: operations of all device kernels that C++ cannot express.
#pragma once

#include <cuda_bf16.h>

namespace cadenza::kernels::device {

class DeviceThread {
 public:
  __device__ __forceinline__ void warp_barrier() const { __syncwarp(); }
  /// Returns the value of the lane whose number differs in `bits`.
  __device__ __forceinline__ float exchanged(float value, int bits) const {
    return __shfl_xor_sync(0xffffffffu, value, bits);
  }
  /// Copies one number to shared memory, present after a wait for copies; 0 unless `inside`.
  __device__ __forceinline__ void copy_number(float* to, const float* from, bool inside) const {
    const int bytes = inside ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(address(to)), "l"(from),
                 "r"(bytes)
                 : "memory");
  }

  /// Accurate to two units in the last place; 0 if the result would be subnormal.
  __device__ __forceinline__ float exp2(float x) const {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
  }
  __device__ __forceinline__ float exp(float x) const { return expf(x); }
  __device__ __forceinline__ float log(float x) const { return logf(x); }
  __device__ __forceinline__ float fma(float a, float b, float c) const { return fmaf(a, b, c); }
  /// Packs two numbers as bfloat16, the first in the lower half.
  __device__ __forceinline__ unsigned pack(float low, float high) const {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
  }

 protected:
  __device__ __forceinline__ static unsigned address(const void* shared) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared));
  }
};

}  // namespace cadenza::kernels::device
