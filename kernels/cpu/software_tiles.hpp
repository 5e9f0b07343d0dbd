// SPDX-License-Identifier: Apache-2.0
// The interface of amx.hpp in plain C++, for every processor. Sanitizers see its loads and stores,
// and an instruction outside begin_tiles and end_tiles ends the program, as on the processor.
// Functions of more than a few instructions are not inlined: compilation would take minutes.
#pragma once

#include <cstdint>

namespace cadenza::kernels::cpu {

struct SoftwareTiles {
  static constexpr int kLanes = 16;
  static constexpr int kBlockRows = 32;
  static constexpr int kDepth = 2;
  static constexpr bool kBfloat16 = true;
  static constexpr bool kWidens = false;

  struct Vector {
    float lane[kLanes];
  };
  struct Mask {
    bool lane[kLanes];
  };

  static Vector zero() { return {}; }
  static Vector broadcast(float x) {
    return each([&](int) { return x; });
  }
  static Vector load(const float* p) {
    Vector x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  static void store(float* p, Vector x) { __builtin_memcpy(p, &x, sizeof x); }
  static Vector add(Vector a, Vector b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Vector subtract(Vector a, Vector b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static Vector multiply(Vector a, Vector b) {
    return each([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static Vector fma(Vector a, Vector b, Vector c) {
    return each([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]); });
  }
  static Vector fms(Vector a, Vector b, Vector c) {
    return each([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], -c.lane[i]); });
  }
  /// Returns the second operand if either is NaN; so does min.
  static Vector max(Vector a, Vector b) {
    return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static Vector min(Vector a, Vector b) {
    return each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static Mask less(Vector a, Vector b) {
    Mask m;
    for (int i = 0; i < kLanes; ++i) m.lane[i] = a.lane[i] < b.lane[i];
    return m;
  }
  static Vector select(Mask m, Vector yes, Vector no) {
    return each([&](int i) { return m.lane[i] ? yes.lane[i] : no.lane[i]; });
  }
  [[gnu::noinline]] static Vector exponential2(Vector x) {
    return each([&](int i) { return __builtin_exp2f(x.lane[i]); });
  }
  [[gnu::noinline]] static void transpose(const float* from, std::int64_t from_pitch, float* to,
                                          std::int64_t to_pitch) {
    float block[kLanes][kLanes];
    for (int r = 0; r < kLanes; ++r) {
      for (int c = 0; c < kLanes; ++c) block[c][r] = from[r * from_pitch + c];
    }
    for (int c = 0; c < kLanes; ++c) {
      __builtin_memcpy(to + c * to_pitch, block[c], sizeof block[c]);
    }
  }

  [[gnu::noinline]] static Vector widen(const std::uint16_t* p) {
    return each([&](int i) { return float_of(p[i]); });
  }
  [[gnu::noinline]] static void narrow(std::uint16_t* p, Vector x) {
    for (int i = 0; i < kLanes; ++i) p[i] = rounded(x.lane[i]);
  }
  static void narrow_row(std::uint16_t* p, Vector first, Vector second) {
    narrow(p, first);
    narrow(p + kLanes, second);
  }
  [[gnu::noinline]] static Vector pair(Vector first, Vector second) {
    return each([&](int i) { return word(rounded(first.lane[i]), rounded(second.lane[i])); });
  }
  [[gnu::noinline]] static Vector pair(const std::uint16_t* first, const std::uint16_t* second) {
    return each([&](int i) { return word(first[i], second[i]); });
  }

  /// Fills tiles with NaN until something is loaded.
  static void begin_tiles() {
    tiles_.configured = true;
    __builtin_memset(tiles_.row, 0xff, sizeof tiles_.row);
  }
  static void end_tiles() { tiles_.configured = false; }
  template <int kTile>
  static void zero_tile() {
    __builtin_memset(tile<kTile>(), 0, kTileRows * sizeof(Row));
  }
  template <int kTile>
  [[gnu::noinline]] static void load_tile(const void* data, std::int64_t pitch) {
    Row* rows = tile<kTile>();
    for (int r = 0; r < kTileRows; ++r) {
      __builtin_memcpy(&rows[r], static_cast<const char*>(data) + r * pitch, sizeof(Row));
    }
  }
  template <int kTile>
  [[gnu::noinline]] static void store_tile(float* data, std::int64_t pitch) {
    const Row* rows = tile<kTile>();
    for (int r = 0; r < kTileRows; ++r) {
      __builtin_memcpy(reinterpret_cast<char*>(data) + r * pitch, &rows[r], sizeof(Row));
    }
  }
  /// Multiplies tiles. A product of two bfloat16 numbers is exact in float32, so the sum rounds
  /// like an fma's. Without sanitizers: there is nothing to see in whole tiles, and they would take
  /// most of a test's time.
  template <int kSum, int kLeft, int kRight>
  [[gnu::noinline, gnu::no_sanitize("address", "undefined")]] static void multiply_tiles() {
    Row* sum = tile<kSum>();
    const Row *left = tile<kLeft>(), *right = tile<kRight>();
    float total[kTileRows][kLanes];
    __builtin_memcpy(total, sum, sizeof total);
    for (int k = 0; k < kTileRows; ++k) {
      float low[kLanes], high[kLanes];
      for (int j = 0; j < kLanes; ++j) {
        low[j] = __builtin_bit_cast(float, right[k].word[j] << 16);
        high[j] = __builtin_bit_cast(float, right[k].word[j] & 0xffff0000u);
      }
      for (int i = 0; i < kTileRows; ++i) {
        const auto low_left = __builtin_bit_cast(float, left[i].word[k] << 16);
        const auto high_left = __builtin_bit_cast(float, left[i].word[k] & 0xffff0000u);
        for (int j = 0; j < kLanes; ++j) total[i][j] += low_left * low[j];
        for (int j = 0; j < kLanes; ++j) total[i][j] += high_left * high[j];
      }
    }
    __builtin_memcpy(sum, total, sizeof total);
  }

 private:
  static constexpr int kTiles = 8;
  static constexpr int kTileRows = 16;
  struct Row {
    std::uint32_t word[kLanes];
  };
  struct Tiles {
    Row row[kTiles][kTileRows];
    bool configured;
  };
  static inline thread_local Tiles tiles_;

  template <int kTile>
  static Row* tile() {
    static_assert(kTile >= 0 && kTile < kTiles);
    if (!tiles_.configured) __builtin_trap();
    return tiles_.row[kTile];
  }
  template <typename Function>
  [[gnu::always_inline]] static Vector each(const Function& function) {
    Vector x;
    for (int i = 0; i < kLanes; ++i) x.lane[i] = function(i);
    return x;
  }
  static float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits << 16); }
  /// Rounds to nearest, ties to even; NaN stays NaN.
  static std::uint16_t rounded(float value) {
    const auto wide = __builtin_bit_cast(std::uint32_t, value);
    const std::uint32_t nearest = wide + 0x7fffu + ((wide >> 16) & 1u);
    return static_cast<std::uint16_t>((value != value ? wide | 0x400000u : nearest) >> 16);
  }
  static float word(std::uint32_t low, std::uint32_t high) {
    return __builtin_bit_cast(float, low | high << 16);
  }
};

}  // namespace cadenza::kernels::cpu
