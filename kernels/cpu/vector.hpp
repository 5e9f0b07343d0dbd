// SPDX-License-Identifier: Apache-2.0
// Instruction sets of the tile kernels: vectors of float lanes, and the operands of one step of a
// matrix product. A *word* is 32 bits of depth: one float, or two bfloat16 that one instruction
// multiplies and adds. Every name contains its instruction set, because each set is compiled with
// other flags and the linker must never confuse them.
#pragma once

#include <cstdint>
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace cadenza::kernels::cpu {

#ifdef __AVX2__
/// 8 lanes of float32.
struct Avx2 {
  using Vector = __m256;
  using Mask = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kBlockRows = 6;      ///< 6 x 2 accumulators of 16 registers
  static constexpr int kDepth = 1;          ///< elements in a word
  static constexpr bool kBfloat16 = false;  ///< words are pairs of bfloat16
  static constexpr bool kWidens = false;    ///< words are floats, stored in memory as bfloat16

  static Vector zero() { return _mm256_setzero_ps(); }
  static Vector broadcast(float x) { return _mm256_set1_ps(x); }
  static Vector load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Vector x) { _mm256_storeu_ps(p, x); }
  static Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  static Vector subtract(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
  static Vector multiply(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
  static Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  static Vector fms(Vector a, Vector b, Vector c) { return _mm256_fmsub_ps(a, b, c); }
  /// Returns the second operand if either is NaN; so does min.
  static Vector max(Vector a, Vector b) { return _mm256_max_ps(a, b); }
  static Vector min(Vector a, Vector b) { return _mm256_min_ps(a, b); }
  static Mask less(Vector a, Vector b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static Vector select(Mask m, Vector yes, Vector no) { return _mm256_blendv_ps(no, yes, m); }
  /// Returns m * 2^n for m in [0.5, 2) and integral n of [-125, 0]; 0 for smaller n, whatever m.
  static Vector scale(Vector m, Vector n) {
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    const Vector scaled = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(m), bits));
    return _mm256_and_ps(_mm256_cmp_ps(n, _mm256_set1_ps(-125.0f), _CMP_NLT_UQ), scaled);
  }
  /// Does one step of depth of a matrix product.
  static Vector multiply_words(Vector a, Vector b, Vector sum) { return fma(a, b, sum); }

  /// Transposes 8 x 8 words: to[c * to_pitch + r] = from[r * from_pitch + c].
  static void transpose(const float* from, std::int64_t from_pitch, float* to,
                        std::int64_t to_pitch) {
    __m256 r[8], t[8];
    for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + i * from_pitch);
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
      r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
      r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      _mm256_storeu_ps(to + i * to_pitch, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
      _mm256_storeu_ps(to + (i + 4) * to_pitch, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
  }
  /// Loads 8 floats that are stored as bfloat16.
  static Vector widen(const std::uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
};
#endif

#ifdef __AVX512F__
/// 16 lanes of float32.
struct Avx512 {
  using Vector = __m512;
  using Mask = __mmask16;
  static constexpr int kLanes = 16;
  static constexpr int kBlockRows = 8;  ///< 8 x 2 accumulators of 32 registers
  static constexpr int kDepth = 1;
  static constexpr bool kBfloat16 = false;
  static constexpr bool kWidens = false;

  static Vector zero() { return _mm512_setzero_ps(); }
  static Vector broadcast(float x) { return _mm512_set1_ps(x); }
  static Vector load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Vector x) { _mm512_storeu_ps(p, x); }
  static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  static Vector subtract(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
  static Vector multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  static Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  static Vector fms(Vector a, Vector b, Vector c) { return _mm512_fmsub_ps(a, b, c); }
  static Vector max(Vector a, Vector b) { return _mm512_max_ps(a, b); }
  static Vector min(Vector a, Vector b) { return _mm512_min_ps(a, b); }
  static Mask less(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static Vector select(Mask m, Vector yes, Vector no) { return _mm512_mask_blend_ps(m, no, yes); }
  static Vector scale(Vector m, Vector n) {
    const Mask any = _mm512_cmp_ps_mask(n, _mm512_set1_ps(-150.0f), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(any, m, n);
  }
  static Vector multiply_words(Vector a, Vector b, Vector sum) { return fma(a, b, sum); }

  /// Transposes 16 x 16 words: to[c * to_pitch + r] = from[r * from_pitch + c].
  static void transpose(const float* from, std::int64_t from_pitch, float* to,
                        std::int64_t to_pitch) {
    __m512 r[16], t[16];
    for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(from + i * from_pitch);
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
      r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
      r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    // r[4g + c] now holds column c, c + 4, c + 8, c + 12 of rows 4g .. 4g + 3, one per 128 bits.
    for (int c = 0; c < 4; ++c) {
      const __m512 low02 = _mm512_shuffle_f32x4(r[c], r[c + 4], 0x88);
      const __m512 low13 = _mm512_shuffle_f32x4(r[c], r[c + 4], 0xdd);
      const __m512 high02 = _mm512_shuffle_f32x4(r[c + 8], r[c + 12], 0x88);
      const __m512 high13 = _mm512_shuffle_f32x4(r[c + 8], r[c + 12], 0xdd);
      _mm512_storeu_ps(to + c * to_pitch, _mm512_shuffle_f32x4(low02, high02, 0x88));
      _mm512_storeu_ps(to + (c + 8) * to_pitch, _mm512_shuffle_f32x4(low02, high02, 0xdd));
      _mm512_storeu_ps(to + (c + 4) * to_pitch, _mm512_shuffle_f32x4(low13, high13, 0x88));
      _mm512_storeu_ps(to + (c + 12) * to_pitch, _mm512_shuffle_f32x4(low13, high13, 0xdd));
    }
  }
  /// Loads 16 floats that are stored as bfloat16.
  static Vector widen(const std::uint16_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
};
#endif

#ifdef __AVX512BF16__
/// 16 lanes of float32 sums over pairs of bfloat16.
struct Avx512Bfloat16 : Avx512 {
  static constexpr int kDepth = 2;
  static constexpr bool kBfloat16 = true;

  static Vector multiply_words(Vector a, Vector b, Vector sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
  /// Rounds 16 floats to bfloat16 in memory.
  static void narrow(std::uint16_t* p, Vector x) {
    _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(x));
  }
  /// Returns the words (first[i], second[i]) of two vectors of floats.
  static Vector pair(Vector first, Vector second) {
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(second, first);
    const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(both));
    const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(both, 1));
    return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
  }
  /// Returns the words (first[i], second[i]) of two runs of 16 bfloat16.
  static Vector pair(const std::uint16_t* first, const std::uint16_t* second) {
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)first));
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)second));
    return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
  }
};
#endif

/// An instruction set for rows that are stored as bfloat16.
template <typename M>
struct Widening : M {
  static constexpr bool kWidens = true;
};

inline constexpr float kLog2E = 1.44269504088896340736f;

/// Returns 2^(x * factor) for x * factor <= 0 with a relative error below 6e-7 (2^f by a minimax
/// polynomial of degree 5, exactly 1 at 0); 0 if the result is not a normal number (AVX-512: not a
/// number), NaN for NaN.
template <typename M>
inline typename M::Vector exponential2(typename M::Vector x, typename M::Vector factor) {
  const auto to_integer = M::broadcast(0x1.8p23f);  // a sum with it has no digits after the point
  const auto whole = M::subtract(M::fma(x, factor, to_integer), to_integer);
  const auto f = M::fms(x, factor, whole);
  auto p = M::fma(f, M::broadcast(0.00111255092635f), M::broadcast(0.00966628254749f));
  p = M::fma(p, f, M::broadcast(0.0555740046864f));
  p = M::fma(p, f, M::broadcast(0.240223506502f));
  p = M::fma(p, f, M::broadcast(0.693142830611f));
  p = M::fma(p, f, M::broadcast(1.0f));
  return M::scale(p, whole);
}

/// Returns e^x for x <= 0, with an additional relative error of 2^-26 |x|. Returns 1 for x > 0: a
/// logit less lse exceeds 0 only by rounding, and for huge logits that rounding may be large.
template <typename M>
inline typename M::Vector exponential(typename M::Vector x) {
  return exponential2<M>(M::min(M::zero(), x), M::broadcast(kLog2E));
}

}  // namespace cadenza::kernels::cpu
