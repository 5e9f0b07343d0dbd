// SPDX-License-Identifier: Apache-2.0
// Which instruction sets the processor at hand has.
#include "attention.hpp"

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
extern const TileKernels kAmxKernels;

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

namespace {

/// Leaf 7 of CPUID: AMX-BF16 and AMX-TILE.
bool processor_has_amx() {
  constexpr unsigned kBfloat16 = 1u << 22, kTile = 1u << 24;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  return (d & kBfloat16) != 0 && (d & kTile) != 0 && avx512_bfloat16_kernels() != nullptr;
}

/// Tiles are 8 KiB of state that Linux saves only for processes that ask for it.
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

const TileKernels* avx2_kernels() {
  return nullptr;
}
const TileKernels* avx512_kernels() {
  return nullptr;
}
const TileKernels* avx512_bfloat16_kernels() {
  return nullptr;
}
const TileKernels* amx_bfloat16_kernels() {
  return nullptr;
}
bool amx_was_refused() {
  return false;
}

#endif

template <>
const TileKernels* best_kernels<float>() {
  const TileKernels* wide = avx512_kernels();
  return wide != nullptr ? wide : avx2_kernels();
}

template <>
const TileKernels* best_kernels<bfloat16>() {
  const TileKernels* amx = amx_bfloat16_kernels();
  return amx != nullptr ? amx : avx512_bfloat16_kernels();
}

}  // namespace cadenza::kernels::cpu
