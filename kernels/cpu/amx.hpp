// SPDX-License-Identifier: Apache-2.0
// Intel AMX: eight tile registers of 16 rows x 64 bytes, and the product of two of them. Softmax
// between the products uses AVX-512. amx_forward.hpp and amx_backward.hpp are written for this
// interface; software_tiles.hpp has the same one in plain C++.
#pragma once

#include "vector.hpp"

namespace cadenza::kernels::cpu {

#ifdef __AMX_BF16__
struct Amx : Avx512Bfloat16 {
  static constexpr int kBlockRows = 32;

  /// Configures the thread's tile state: all eight tiles have 16 rows of 64 bytes, until
  /// `end_tiles`.
  static void begin_tiles() {
    struct alignas(64) {
      std::uint8_t palette = 1;
      std::uint8_t start_row = 0;
      std::uint8_t reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const configuration;
    asm volatile("ldtilecfg %0" : : "m"(configuration));
  }
  static void end_tiles() { asm volatile("tilerelease"); }

  template <int kTile>
  [[gnu::always_inline]] static void zero_tile() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  /// Loads a tile: row r is the 64 bytes at data + r * pitch; `pitch` in bytes.
  template <int kTile>
  [[gnu::always_inline]] static void load_tile(const void* data, std::int64_t pitch) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(data), "r"(pitch), "i"(kTile) : "memory");
  }
  template <int kTile>
  [[gnu::always_inline]] static void store_tile(float* data, std::int64_t pitch) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(data), "r"(pitch), "i"(kTile) : "memory");
  }
  /// Adds to sum[i][j], over pairs of depth k: left[i][2k] right[k][2j] + left[i][2k + 1]
  /// right[k][2j + 1]. Rows of `left` are 32 bfloat16, rows of `right` 16 words, rows of `sum` 16
  /// floats.
  template <int kSum, int kLeft, int kRight>
  [[gnu::always_inline]] static void multiply_tiles() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
  }

  /// Returns 2^x for x <= 0 with a relative error below 3.1e-6 (minimax polynomial of degree 4;
  /// exactly 1 at 0): 2^-10 of the error of rounding to bfloat16. 0 for -inf, NaN for NaN.
  static Vector exponential2(Vector x) {
    constexpr int kLessFloor = 0x09;  // x - floor(x), exceptions suppressed
    const Vector f = _mm512_reduce_ps(x, kLessFloor);
    Vector p = fma(f, broadcast(0.0134266857f), broadcast(0.0522424725f));
    p = fma(p, f, broadcast(0.241280213f));
    p = fma(p, f, broadcast(0.693044841f));
    p = fma(p, f, broadcast(1.0f));
    return _mm512_scalef_ps(p, x);  // times 2^floor(x)
  }
  /// Returns the words (first[i], second[i]) of two vectors of floats.
  static Vector pair(Vector first, Vector second) {
    return interleave((__m512i)_mm512_cvtne2ps_pbh(second, first));
  }
  /// Returns the words (first[i], second[i]) of two runs of 16 bfloat16.
  static Vector pair(const std::uint16_t* first, const std::uint16_t* second) {
    const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)first));
    return interleave(_mm512_inserti64x4(low, _mm256_loadu_si256((const __m256i*)second), 1));
  }
  /// Stores a row of 32 bfloat16, rounded from two vectors of floats.
  static void narrow_row(std::uint16_t* to, Vector first, Vector second) {
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(second, first));
  }

 private:
  /// Interleaves the 16 halves of words 0 to 7 with those of words 8 to 15.
  static Vector interleave(__m512i halves) {
    alignas(64) static constexpr std::uint16_t kOrder[32] = {
        0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_load_si512(kOrder), halves));
  }
};
#endif

}  // namespace cadenza::kernels::cpu
