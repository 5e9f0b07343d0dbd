// SPDX-License-Identifier: Apache-2.0
// Which instruction sets the processor at hand has.
#include "attention.hpp"

namespace cadenza::kernels::cpu {

#ifdef CADENZA_X86_KERNELS

extern const TileKernels kAvx2Kernels;
extern const TileKernels kAvx512Kernels;
extern const TileKernels kAvx512Bfloat16Kernels;

const TileKernels* avx2_kernels() {
  const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has ? &kAvx2Kernels : nullptr;
}

const TileKernels* avx512_kernels() {
  const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return has ? &kAvx512Kernels : nullptr;
}

const TileKernels* avx512_bfloat16_kernels() {
  const bool has = avx512_kernels() != nullptr && __builtin_cpu_supports("avx512bf16");
  return has ? &kAvx512Bfloat16Kernels : nullptr;
}

#else

const TileKernels* avx2_kernels() {
  return nullptr;
}
const TileKernels* avx512_kernels() {
  return nullptr;
}
const TileKernels* avx512_bfloat16_kernels() {
  return nullptr;
}

#endif

template <>
const TileKernels* best_kernels<float>() {
  const TileKernels* wide = avx512_kernels();
  return wide != nullptr ? wide : avx2_kernels();
}

template <>
const TileKernels* best_kernels<bfloat16>() {
  return avx512_bfloat16_kernels();
}

}  // namespace cadenza::kernels::cpu
