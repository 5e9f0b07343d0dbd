// SPDX-License-Identifier: Apache-2.0
// Products of small matrices in a team's scratch memory: the inner loops of attention.
#pragma once

#include "pack.hpp"

namespace cadenza::kernels::portable {

/// A register block is kBlockRows × kBlockColumns: 8 accumulators hide the latency of two fused
/// multiply-adds per cycle, and 4 + 2 loads feed each 8 of them.
inline constexpr int kBlockRows = 4;
#ifdef CADENZA_VECTOR_PACKS
inline constexpr int kBlockPacks = 2;
#else
inline constexpr int kBlockPacks = 4;
#endif
template <typename Real>
inline constexpr int kBlockColumns = kBlockPacks* kLanes<Real>;

KOKKOS_INLINE_FUNCTION constexpr int round_up(int n, int multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// Packs that hold all rows of the blocks that a product of `rows` rows writes: those behind the
/// last row may belong to another task, and must get values that change nothing.
template <typename Real>
KOKKOS_INLINE_FUNCTION constexpr int packs_of_blocks(int rows) {
  return round_up(round_up(rows, kBlockRows), kLanes<Real>) / kLanes<Real>;
}

/// Elements between rows of a scratch matrix of `columns`: whole blocks, and an odd number of cache
/// lines so that a column does not fall into few cache sets.
KOKKOS_INLINE_FUNCTION constexpr int pitch(int columns) {
  return round_up(columns, 32) + 16;
}

/// Layout of the left factor, and initial value of the product.
enum class Left { rows, columns };       ///< A(i, k) at a[i * lda + k], or at a[k * lda + i]
enum class Start { zero, add, scaled };  ///< C = AB, C += AB, C = diag(scale) C + AB

template <typename Real>
struct Product {
  const Real* a = nullptr;
  int lda = 0;
  const Real* b = nullptr;  ///< B(k, j) at b[k * ldb + j]
  int ldb = 0;
  Real* c = nullptr;
  int ldc = 0;
  const Real* scale = nullptr;  ///< one number per row of C, for Start::scaled
};

/// Computes one register block of C. `p` points to the block's rows of A, columns of B, element of
/// C. AB is summed from zero and then added: a long sum of short ones loses less than one long sum.
template <Left kLeft, Start kStart, typename Real>
KOKKOS_INLINE_FUNCTION void block_product(const Product<Real>& p, int depth) {
  constexpr int kWidth = kLanes<Real>;
  Pack<Real> sum[kBlockRows][kBlockPacks] = {};
  for (int k = 0; k < depth; ++k) {
    Pack<Real> right[kBlockPacks];
    CADENZA_UNROLL_PACKS
    for (int j = 0; j < kBlockPacks; ++j) right[j] = load(p.b + k * p.ldb + j * kWidth);
    CADENZA_UNROLL_PACKS
    for (int i = 0; i < kBlockRows; ++i) {
      const Real left = kLeft == Left::rows ? p.a[i * p.lda + k] : p.a[k * p.lda + i];
      CADENZA_UNROLL_PACKS
      for (int j = 0; j < kBlockPacks; ++j) sum[i][j] = sum[i][j] + left * right[j];
    }
  }
  CADENZA_UNROLL_PACKS
  for (int i = 0; i < kBlockRows; ++i) {
    CADENZA_UNROLL_PACKS
    for (int j = 0; j < kBlockPacks; ++j) {
      Real* to = p.c + i * p.ldc + j * kWidth;
      if constexpr (kStart == Start::add) sum[i][j] = load(to) + sum[i][j];
      if constexpr (kStart == Start::scaled) {
        sum[i][j] = load(to) * broadcast(p.scale[i]) + sum[i][j];
      }
      store(to, sum[i][j]);
    }
  }
}

/// Computes C [rows, columns] from A [rows, depth] and B [depth, columns], in whole blocks of rows
/// and columns: all three matrices need room for them, and the padding is not meaningful.
template <Left kLeft, Start kStart, typename Member, typename Real>
KOKKOS_INLINE_FUNCTION void tile_product(const Member& team, int rows, int columns, int depth,
                                         const Product<Real>& product) {
  const int down = (rows + kBlockRows - 1) / kBlockRows;
  const int across = (columns + kBlockColumns<Real> - 1) / kBlockColumns<Real>;
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, down * across), [&](int block) {
    const int row = block % down * kBlockRows;
    const int column = block / down * kBlockColumns<Real>;
    Product<Real> p = product;
    p.a += kLeft == Left::rows ? row * p.lda : row;
    p.b += column;
    p.c += row * p.ldc + column;
    if constexpr (kStart == Start::scaled) p.scale += row;
    block_product<kLeft, kStart>(p, depth);
  });
  team.team_barrier();
}

}  // namespace cadenza::kernels::portable
