// SPDX-License-Identifier: Apache-2.0
// Which instruction sets the processor at hand has, and which of them is fastest.
#include "processor.hpp"
#include "attention.hpp"

namespace cadenza::kernels::cpu {

#ifdef CADENZA_X86_KERNELS

extern const TileKernels kAvx2Kernels;
extern const TileKernels kAvx512Kernels;
extern const TileKernels kAvx512Bfloat16Kernels;
extern const TileKernels kAvx2WideningKernels;
extern const TileKernels kAvx512WideningKernels;

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

bool fast_avx512_bfloat16() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd");
}

const TileKernels* avx2_widening_kernels() {
  return avx2_kernels() != nullptr ? &kAvx2WideningKernels : nullptr;
}

const TileKernels* avx512_widening_kernels() {
  return avx512_kernels() != nullptr ? &kAvx512WideningKernels : nullptr;
}

#else

bool fast_avx512_bfloat16() {
  return false;
}
const TileKernels* avx2_kernels() {
  return nullptr;
}
const TileKernels* avx512_kernels() {
  return nullptr;
}
const TileKernels* avx512_bfloat16_kernels() {
  return nullptr;
}
const TileKernels* avx2_widening_kernels() {
  return nullptr;
}
const TileKernels* avx512_widening_kernels() {
  return nullptr;
}

#endif

namespace {

std::vector<NamedKernels> present(std::initializer_list<NamedKernels> candidates) {
  std::vector<NamedKernels> found;
  for (const NamedKernels& each : candidates) {
    if (each.table != nullptr) found.push_back(each);
  }
  return found;
}

std::vector<NamedKernels> bfloat16_tables() {
  const NamedKernels narrow{AttentionKernel::avx512_bf16, avx512_bfloat16_kernels()};
  const NamedKernels wide{AttentionKernel::avx512, avx512_widening_kernels()};
  const bool fast = fast_avx512_bfloat16();
  return present({fast ? narrow : wide,
                  fast ? wide : narrow,
                  {AttentionKernel::avx2, avx2_widening_kernels()}});
}

}  // namespace

template <>
const std::vector<NamedKernels>& tables<float>() {
  static const std::vector<NamedKernels> here = present({
      {AttentionKernel::avx512, avx512_kernels()},
      {AttentionKernel::avx2, avx2_kernels()},
  });
  return here;
}

template <>
const std::vector<NamedKernels>& tables<bfloat16>() {
  static const std::vector<NamedKernels> here = bfloat16_tables();
  return here;
}

}  // namespace cadenza::kernels::cpu
