// SPDX-License-Identifier: Apache-2.0
// Helpers with which compilers vectorise loops on the host, in code that also runs on devices.
#pragma once

#include <Kokkos_Core.hpp>
#include <type_traits>

#include "cadenza/kernels/bfloat16.hpp"

/// Marks the following loop, whose iterations must be independent: CADENZA_SIMD() or
/// CADENZA_SIMD(reduction(+ : sum)). Device compilers see an ordinary loop.
#if defined(__CUDACC__) || defined(__HIPCC__)
#define CADENZA_SIMD(clauses)
#else
#define CADENZA_PRAGMA(text) _Pragma(#text)
#define CADENZA_SIMD(clauses) CADENZA_PRAGMA(omp simd clauses)
#endif

namespace cadenza {

/// Converts a stored number to its accumulator type. By reference, like `narrow`: compilers do not
/// vectorise copies of a structure, but do vectorise those of its integer.
template <typename Real>
KOKKOS_INLINE_FUNCTION Accumulator<Real> widen(const Real& from) {
  return static_cast<Accumulator<Real>>(from);
}

/// Stores a number, rounded if Real is narrower.
template <typename Real>
KOKKOS_INLINE_FUNCTION void narrow(Accumulator<Real> value, Real& to) {
  if constexpr (std::is_same_v<Real, bfloat16>) {
    to.bits = bfloat16(value).bits;
  } else {
    to = value;
  }
}

}  // namespace cadenza
