// SPDX-License-Identifier: Apache-2.0
// The register-blocked product of all tile kernels.
#pragma once

#include "vector.hpp"

namespace cadenza::kernels::cpu {

inline constexpr int kBlockVectors = 2;  ///< vectors in a row of a register block
template <typename M>
inline constexpr int kPanel = kBlockVectors* M::kLanes;  ///< columns of a register block

/// Words of the left factor: element (i, k) at data[i * row_step + k * depth_step].
struct Left {
  const float* data;
  std::int64_t row_step;
  std::int64_t depth_step;
};

/// A block of sums in registers.
template <typename M, int kRows>
struct Block {
  typename M::Vector sum[kRows][kBlockVectors];
};

/// Number of rows of a block as a compile-time constant.
template <int kNumber>
struct RowCount {
  static constexpr int kRows = kNumber;
};

/// Calls work(RowCount, first row) for the blocks of kCount rows that hold rows [begin, end);
/// `begin` may be below 0. Block boundaries do not depend on the range: each block has as many rows
/// as registers hold sums of, the last one the remainder of kCount. Blocks have an even number of
/// rows, so that bfloat16 can pair them.
template <typename M, int kCount, typename Work>
[[gnu::always_inline]] inline void for_blocks(int begin, int end, const Work& work) {
  constexpr int kRows = M::kBlockRows;
  constexpr int kRest = kCount % kRows;
  int row = begin > 0 ? begin / kRows * kRows : 0;
  for (; row < end && row < kCount - kRest; row += kRows) work(RowCount<kRows>(), row);
  if constexpr (kRest > 0) {
    if (row < end) work(RowCount<kRest>(), row);
  }
}

/// Adds to sum[i][j] over k in [0, depth): left(i, k) * right[k * pitch + j].
template <typename M, int kRows>
[[gnu::always_inline]] inline void accumulate(Block<M, kRows>& block, Left left, const float* right,
                                              std::int64_t pitch, int depth) {
  typename M::Vector sum[kRows][kBlockVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlockVectors; ++j) sum[i][j] = block.sum[i][j];
  }
  for (int k = 0; k < depth; ++k) {
    typename M::Vector b[kBlockVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kBlockVectors; ++j) b[j] = M::load(right + j * M::kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const auto a = M::broadcast(left.data[i * left.row_step]);
#pragma GCC unroll 4
      for (int j = 0; j < kBlockVectors; ++j) sum[i][j] = M::multiply_words(a, b[j], sum[i][j]);
    }
    right += pitch;
    left.data += left.depth_step;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlockVectors; ++j) block.sum[i][j] = sum[i][j];
  }
}

template <typename M, int kRows>
[[gnu::always_inline]] inline Block<M, kRows> zero_block() {
  Block<M, kRows> block;
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlockVectors; ++j) block.sum[i][j] = M::zero();
  }
  return block;
}

template <typename M, int kRows>
[[gnu::always_inline]] inline void store_block(const Block<M, kRows>& block, float* to,
                                               std::int64_t pitch) {
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlockVectors; ++j) {
      M::store(to + i * pitch + j * M::kLanes, block.sum[i][j]);
    }
  }
}

/// Computes to = to * keep[row] + block. A block that starts from zeros is a sum of its own, so a
/// long sum is a sum of such sums, and small terms are not lost against a large total.
template <typename M, int kRows>
[[gnu::always_inline]] inline void add_block(const Block<M, kRows>& block, const float* keep,
                                             float* to, std::int64_t pitch) {
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    const auto factor = M::broadcast(keep[i]);
#pragma GCC unroll 4
    for (int j = 0; j < kBlockVectors; ++j) {
      float* at = to + i * pitch + j * M::kLanes;
      M::store(at, M::fma(M::load(at), factor, block.sum[i][j]));
    }
  }
}

/// Computes to += block.
template <typename M, int kRows>
[[gnu::always_inline]] inline void add_block(const Block<M, kRows>& block, float* to,
                                             std::int64_t pitch) {
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlockVectors; ++j) {
      float* at = to + i * pitch + j * M::kLanes;
      M::store(at, M::add(M::load(at), block.sum[i][j]));
    }
  }
}

}  // namespace cadenza::kernels::cpu
