// SPDX-License-Identifier: Apache-2.0
// The kernels of devices under test. On a device they run as they are called; elsewhere their own
// source is run by emulated blocks.
#pragma once

#include "unit/kernels/kernel_sets.hpp"
#ifndef KOKKOS_ENABLE_CUDA
#include "unit/kernels/emulated_hopper.hpp"
#endif

namespace cadenza::testing {

#ifdef KOKKOS_ENABLE_CUDA

inline Kernels<bfloat16> mma_under_test(std::uint64_t = 0) {
  return {};  // the case names the kernel
}
inline Kernels<bfloat16> sm90_under_test(std::uint64_t = 0) {
  return {};
}

#else

/// Passes of `mma`, each with barriers of its own.
enum class MmaPass { all, forward, query_gradient, key_gradient };

/// Leaves a barrier out of a pass, and runs that pass alone.
struct MissingBarrier {
  MmaPass in = MmaPass::all;
  int barrier = -1;  ///< as for EmulatedBlock

  bool runs(MmaPass pass) const { return in == MmaPass::all || in == pass; }
};

/// @param seed  of the order of threads, and of copies
Kernels<bfloat16> emulated_mma(const MissingBarrier& fault = {}, std::uint64_t seed = 0);
Kernels<bfloat16> emulated_sm90(const HopperFault& fault = {}, std::uint64_t seed = 0);

inline Kernels<bfloat16> mma_under_test(std::uint64_t seed = 0) {
  return emulated_mma({}, seed);
}
inline Kernels<bfloat16> sm90_under_test(std::uint64_t seed = 0) {
  return emulated_sm90({}, seed);
}

#endif

}  // namespace cadenza::testing
