// SPDX-License-Identifier: Apache-2.0
// The register-blocked product of all AMX kernels, and a way to do other work between its
// instructions: a product of tiles takes 16 cycles, in which the vector units are free.
#pragma once

#include "pack_tile.hpp"

namespace cadenza::kernels::cpu {

/// Rows and columns of a block of sums: 2 x 2 tiles, so that every product needs one tile load.
inline constexpr int kTileBlock = 32;
/// Depth of a tile product, elements.
inline constexpr int kTileDepth = 32;
/// Tile products per step of depth of a block.
inline constexpr int kBlockProducts = 4;

constexpr int round_up(int value, int step) {
  return (value + step - 1) / step * step;
}

/// A factor of a block's product: its first tile, the distance of rows, and the distance of tiles
/// from one step of depth to the next, in bytes.
struct Factor {
  const void* data;
  std::int64_t pitch;
  std::int64_t step;

  const char* at(std::int64_t offset) const { return static_cast<const char*>(data) + offset; }
};

/// No work between products.
struct Idle {
  void step() {}
  void finish() {}
};

/// Does a share of `work` at every step, so that it ends after about `steps` of them.
template <typename Work>
class Spread {
 public:
  Spread(Work& work, int steps) : work_(work), share_(steps > 0 ? work.left() / steps + 1 : 0) {}
  [[gnu::always_inline]] void step() {
    for (int i = 0; i < share_ && work_.left() > 0; ++i) work_.advance();
  }
  [[gnu::always_inline]] void finish() {
    while (work_.left() > 0) work_.advance();
  }

 private:
  Work& work_;
  int share_;
};

template <typename A, typename B>
struct Both {
  A& a;
  B& b;
  [[gnu::always_inline]] void step() {
    a.step();
    b.step();
  }
};

template <typename M>
[[gnu::always_inline]] inline void zero_tiles() {
  M::template zero_tile<0>();
  M::template zero_tile<1>();
  M::template zero_tile<2>();
  M::template zero_tile<3>();
}

/// `pitch` in floats.
template <typename M>
[[gnu::always_inline]] inline void load_tiles(const float* from, std::int64_t pitch) {
  constexpr std::int64_t kBytes = sizeof(float);
  M::template load_tile<0>(from, pitch * kBytes);
  M::template load_tile<1>(from + 16, pitch * kBytes);
  M::template load_tile<2>(from + 16 * pitch, pitch * kBytes);
  M::template load_tile<3>(from + 16 * pitch + 16, pitch * kBytes);
}

template <typename M>
[[gnu::always_inline]] inline void store_tiles(float* to, std::int64_t pitch) {
  constexpr std::int64_t kBytes = sizeof(float);
  M::template store_tile<0>(to, pitch * kBytes);
  M::template store_tile<1>(to + 16, pitch * kBytes);
  M::template store_tile<2>(to + 16 * pitch, pitch * kBytes);
  M::template store_tile<3>(to + 16 * pitch + 16, pitch * kBytes);
}

/// Adds a product to the block in tiles 0 to 3: `left` has 32 rows of depth, `right` has depth in
/// pairs and 32 columns. Calls between.step() after every product.
template <typename M, typename Between>
[[gnu::always_inline]] inline void multiply_block(const Factor& left, const Factor& right,
                                                  int steps, Between& between) {
  constexpr std::int64_t kTileBytes = 64;
  for (int k = 0; k < steps; ++k) {
    M::template load_tile<6>(right.at(k * right.step), right.pitch);
    M::template load_tile<4>(left.at(k * left.step), left.pitch);
    M::template multiply_tiles<0, 4, 6>();
    between.step();
    M::template load_tile<7>(right.at(k * right.step + kTileBytes), right.pitch);
    M::template multiply_tiles<1, 4, 7>();
    between.step();
    M::template load_tile<5>(left.at(k * left.step + 16 * left.pitch), left.pitch);
    M::template multiply_tiles<2, 5, 6>();
    between.step();
    M::template multiply_tiles<3, 5, 7>();
    between.step();
  }
}

/// Transposes pairs: to[c][p] = elements c of rows (2p, 2p + 1) of `from`, so that a row of `to` is
/// the depth of column c: [dim, pitch] words from `count` rows of bfloat16, zeros up to `padded`
/// rows (a multiple of 32).
template <typename M>
void transpose_pairs(Rows from, int dim, int padded, float* to, std::int64_t pitch) {
  constexpr int kLanes = M::kLanes;
  alignas(64) static constexpr std::uint16_t kZeros[kLanes] = {};
  alignas(64) float words[kLanes * kLanes];
  const auto* data = static_cast<const std::uint16_t*>(from.data);
  const auto row = [&](int r, int d) __attribute__((always_inline)) {
    return r < from.count ? data + r * from.stride + d : kZeros;
  };
  for (int r = 0; r < padded; r += 2 * kLanes) {
    for (int d = 0; d < dim; d += kLanes) {
      for (int i = 0; i < kLanes; ++i) {
        M::store(words + i * kLanes, M::pair(row(r + 2 * i, d), row(r + 2 * i + 1, d)));
      }
      M::transpose(words, kLanes, to + d * pitch + r / 2, pitch);
    }
  }
}

}  // namespace cadenza::kernels::cpu
