// SPDX-License-Identifier: Apache-2.0
// Detects the processor's instruction sets and which of them is fastest.
#include "processor.hpp"
#include "attention.hpp"
#include "observe_tile.hpp"

#ifdef CADENZA_X86_KERNELS
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace cadenza::kernels::cpu {

#ifdef CADENZA_X86_KERNELS

extern const TileKernels kAvx2Kernels;
extern const TileKernels kAvx512Kernels;
extern const TileKernels kAvx512Bfloat16Kernels;
extern const TileKernels kAvx2WideningKernels;
extern const TileKernels kAvx512WideningKernels;
extern const TileKernels kAmxKernels;
extern const ObserveKernels<float> kAvx2ObserveKernels;
extern const ObserveKernels<float> kAvx512ObserveKernels;

const ObserveKernels<float>* observe_kernels() {
  if (avx512_kernels() != nullptr) return &kAvx512ObserveKernels;
  return avx2_kernels() != nullptr ? &kAvx2ObserveKernels : nullptr;
}

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

namespace {

/// Whether leaf 7 of CPUID lists AMX-BF16 and AMX-TILE.
bool processor_has_amx() {
  constexpr unsigned kBfloat16 = 1u << 22, kTile = 1u << 24;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  return (d & kBfloat16) != 0 && (d & kTile) != 0 && avx512_bfloat16_kernels() != nullptr;
}

/// Requests permission for AMX: Linux saves the 8 KiB of tile state only for processes that ask.
bool system_permits_amx() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  static const bool permitted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return permitted;
#else
  return false;
#endif
}

}  // namespace

const TileKernels* amx_bfloat16_kernels() {
  static const bool has = processor_has_amx() && system_permits_amx();
  return has ? &kAmxKernels : nullptr;
}

bool amx_was_refused() {
  static const bool refused = processor_has_amx() && !system_permits_amx();
  return refused;
}

#else

const ObserveKernels<float>* observe_kernels() {
  return nullptr;
}
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
const TileKernels* amx_bfloat16_kernels() {
  return nullptr;
}
bool amx_was_refused() {
  return false;
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
  return present({{AttentionKernel::amx, amx_bfloat16_kernels()},
                  fast ? narrow : wide,
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
