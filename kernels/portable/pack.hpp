// SPDX-License-Identifier: Apache-2.0
// A few lanes of numbers that compute together: a register of the host's vector unit, one number on
// a device. Spelling the lanes out (instead of hoping for auto-vectorisation) keeps accumulators in
// registers at any optimisation level that inlines.
#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>

#if defined(__GNUC__) && !defined(__CUDACC__) && !defined(__HIPCC__)
#define CADENZA_VECTOR_PACKS
#define CADENZA_UNROLL_PACKS _Pragma("GCC unroll 8")
#elif defined(__CUDACC__) || defined(__HIPCC__)
#define CADENZA_UNROLL_PACKS _Pragma("unroll")
#else
#define CADENZA_UNROLL_PACKS
#endif

namespace cadenza::kernels::portable {

#ifdef CADENZA_VECTOR_PACKS

#if defined(__AVX512F__)
inline constexpr int kRegisterBytes = 64;
#elif defined(__AVX__)
inline constexpr int kRegisterBytes = 32;
#else
inline constexpr int kRegisterBytes = 16;
#endif

template <typename Real>
struct PackOf;
template <>
struct PackOf<float> {
  typedef float type __attribute__((vector_size(kRegisterBytes)));
  typedef std::uint32_t bits __attribute__((vector_size(kRegisterBytes)));
};
template <>
struct PackOf<double> {
  typedef double type __attribute__((vector_size(kRegisterBytes)));
};
template <typename Real>
using Pack = typename PackOf<Real>::type;

template <typename Real>
inline constexpr int kLanes = kRegisterBytes / static_cast<int>(sizeof(Real));

template <typename Real>
inline Pack<Real> broadcast(Real value) {
  return value - Pack<Real>{};  // keeps the sign of a zero, unlike value + 0
}

template <typename Real>
inline Pack<Real> load(const Real* from) {
  Pack<Real> pack;
  __builtin_memcpy(&pack, from, sizeof(pack));  // needs no alignment
  return pack;
}

template <typename Real>
inline void store(Real* to, Pack<Real> pack) {
  __builtin_memcpy(to, &pack, sizeof(pack));
}

/// Returns lanes of `a` where `below < limit`, of `b` elsewhere.
template <typename Real>
inline Pack<Real> select_less(Pack<Real> below, Pack<Real> limit, Pack<Real> a, Pack<Real> b) {
  return below < limit ? a : b;
}

/// Returns e^x for x <= 0. Relative error below 1.3e-7 in [-87, 0]; 0 below -87 (where floats
/// become subnormal); NaN stays NaN and e^0 is exactly 1. Returns 1 for x > 0: a logit less the
/// largest, or less lse, exceeds 0 only by rounding, and for huge logits that rounding may be
/// large.
inline Pack<float> exponential(Pack<float> x) {
  using Bits = typename PackOf<float>::bits;
  // x = n ln 2 + r with |r| <= ln(2) / 2. Adding 1.5 * 2^23 rounds n to an integer in the low bits.
  constexpr float kRound = 12582912.0f;
  constexpr std::uint32_t kRoundBits = 0x4B400000u;
  const Pack<float> low = broadcast(-87.0f);
  const Pack<float> high = broadcast(0.0f);
  Pack<float> y = x < low ? low : x;
  y = y > high ? high : y;
  const Pack<float> rounded = y * 1.44269504f + kRound;
  const Pack<float> n = rounded - kRound;
  const Pack<float> r = (y - n * 0.693359375f) + n * 2.12194440e-4f;
  // (e^r - 1 - r) / r^2, interpolated in Chebyshev points; truncation error 1.1e-8 of e^r.
  Pack<float> p = r * 1.392625083e-3f + 8.363232884e-3f;
  p = p * r + 4.166655421e-2f;
  p = p * r + 1.666657667e-1f;
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  Bits exponent;
  __builtin_memcpy(&exponent, &rounded, sizeof(exponent));
  exponent = (exponent - (kRoundBits - 127u)) << 23;
  Pack<float> scale;
  __builtin_memcpy(&scale, &exponent, sizeof(scale));
  return x < low ? Pack<float>{} : p * scale;
}

inline Pack<double> exponential(Pack<double> x) {
  for (int lane = 0; lane < kLanes<double>; ++lane)
    x[lane] = x[lane] > 0 ? 1 : Kokkos::exp(x[lane]);
  return x;
}

#else

template <typename Real>
using Pack = Real;
template <typename Real>
inline constexpr int kLanes = 1;

template <typename Real>
KOKKOS_INLINE_FUNCTION Real broadcast(Real value) {
  return value;
}
template <typename Real>
KOKKOS_INLINE_FUNCTION Real load(const Real* from) {
  return *from;
}
template <typename Real>
KOKKOS_INLINE_FUNCTION void store(Real* to, Real value) {
  *to = value;
}
template <typename Real>
KOKKOS_INLINE_FUNCTION Real select_less(Real below, Real limit, Real a, Real b) {
  return below < limit ? a : b;
}
template <typename Real>
KOKKOS_INLINE_FUNCTION Real exponential(Real x) {
  return x > 0 ? Real(1) : Kokkos::exp(x);
}

#endif

/// Returns lanes of `a` where `begin <= key < end`, of `b` elsewhere.
template <typename Real>
KOKKOS_INLINE_FUNCTION Pack<Real> select_seen(Pack<Real> key, Pack<Real> begin, Pack<Real> end,
                                              Pack<Real> a, Pack<Real> b) {
  return select_less<Real>(key, begin, b, select_less<Real>(key, end, a, b));
}

}  // namespace cadenza::kernels::portable
