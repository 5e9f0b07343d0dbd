// SPDX-License-Identifier: Apache-2.0
// Backward core attention of one pair of tiles in five products: S = Q K^T, dP = dO V^T,
// dV += P^T dO, dK += dS^T Q, dQ = dS K, with P = e^(S scale - lse) and dS = P (dP - delta)
// (Dao et al. 2022, appendix B). A lane is a key, so lse and delta are one number per row.
//
// The product S scale is rounded before lse is subtracted, because the lse of a row with one
// dominant logit was rounded the same way: its probability is then 1, however large the logit is.
#pragma once

#include "pack_tile.hpp"

namespace cadenza::kernels::cpu {

inline constexpr int kGradientQueries = 64;
inline constexpr int kGradientKeys = 128;

/// First row whose keys reach `key`, as those of all later rows do; visible.last: none.
[[gnu::always_inline]] inline int first_row_seeing(const Visible& visible, int key) {
  if (key >= visible.keys) return visible.last;
  const std::int64_t row = key + 1 - visible.high;
  return row <= visible.first ? visible.first
         : row < visible.last ? static_cast<int>(row)
                              : visible.last;
}

/// Row behind the last one whose keys begin at `key` or earlier.
[[gnu::always_inline]] inline int end_of_rows_from(const Visible& visible, int key) {
  if (key < visible.skipped) return visible.first;
  const std::int64_t row = key + 1 - visible.low;
  return row < visible.last ? static_cast<int>(row) : visible.last;
}

/// Turns one register block of logits into probabilities.
template <typename M, int kRows, bool kMasked>
[[gnu::always_inline]] inline void probabilities_of(Block<M, kRows>& block,
                                                    const BackwardQueries& queries, int row,
                                                    int key, float scale, const Visible& visible) {
  const auto factor = M::broadcast(scale);
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    const auto lse = M::broadcast(queries.lse[row + i]);
#pragma GCC unroll 4
    for (int j = 0; j < kBlockVectors; ++j) {
      auto p = exponential<M>(M::subtract(M::multiply(block.sum[i][j], factor), lse));
      if constexpr (kMasked) {
        alignas(64) static constexpr float kIota[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                        8, 9, 10, 11, 12, 13, 14, 15};
        const auto lane = M::load(kIota);
        const int at = key + j * M::kLanes;
        const auto seen = M::broadcast(static_cast<float>(visible.of(row + i) - at));
        const auto begin = M::broadcast(static_cast<float>(visible.begin_of(row + i) - at));
        p = M::select(M::less(lane, seen), p, M::zero());
        p = M::select(M::less(lane, begin), M::zero(), p);
      }
      block.sum[i][j] = p;
    }
  }
}

/// Stores a block of words that pair rows 2i and 2i + 1.
template <typename M, int kRows>
[[gnu::always_inline]] inline void store_pairs(const Block<M, kRows>& block, float* to,
                                               std::int64_t pitch) {
#pragma GCC unroll 16
  for (int i = 0; i < kRows; i += 2) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlockVectors; ++j) {
      M::store(to + (i / 2) * pitch + j * M::kLanes, M::pair(block.sum[i][j], block.sum[i + 1][j]));
    }
  }
}

/// Computes P of one panel of keys for the blocks of rows [begin, end).
template <typename M>
void probability_panel(const BackwardKeys& keys, const BackwardQueries& queries, int dim,
                       float scale, int key, int begin, int end, const Visible& visible,
                       Prefetcher<M>& prefetcher) {
  // Rows that see the entire panel.
  const int whole = first_row_seeing(visible, key + kPanel<M> - 1);
  const int whole_end = end_of_rows_from(visible, key);
  const int words = dim / M::kDepth;
  const float* panel = keys.key_panels + static_cast<std::int64_t>(key) * words;
  for_blocks<M, kGradientQueries>(begin, end, [&](auto count, int row) {
    constexpr int kRows = decltype(count)::kRows;
    prefetcher.step();
    auto block = zero_block<M, kRows>();
    accumulate<M, kRows>(block, {queries.q + static_cast<std::int64_t>(row) * words, words, 1},
                         panel, kPanel<M>, words);
    if (row >= whole && row + kRows <= whole_end) {
      probabilities_of<M, kRows, false>(block, queries, row, key, scale, visible);
    } else {
      probabilities_of<M, kRows, true>(block, queries, row, key, scale, visible);
    }
    store_block<M, kRows>(block, queries.p + row * kGradientKeys + key, kGradientKeys);
    if constexpr (M::kBfloat16) {
      store_pairs<M, kRows>(block, queries.p_pairs + row / 2 * kGradientKeys + key, kGradientKeys);
    }
  });
}

/// Computes dS = P (dP - delta) of one panel of keys for the blocks of rows [begin, end).
template <typename M>
void logit_gradient_panel(const BackwardKeys& keys, const BackwardQueries& queries, int dim,
                          int key, int begin, int end, Prefetcher<M>& prefetcher) {
  const int words = dim / M::kDepth;
  const float* panel = keys.value_panels + static_cast<std::int64_t>(key) * words;
  for_blocks<M, kGradientQueries>(begin, end, [&](auto count, int row) {
    constexpr int kRows = decltype(count)::kRows;
    prefetcher.step();
    Block<M, kRows> block;  // starts with -delta, so dP - delta costs nothing
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kBlockVectors; ++j) {
        block.sum[i][j] = M::broadcast(queries.minus_delta[row + i]);
      }
    }
    accumulate<M, kRows>(block, {queries.dout + static_cast<std::int64_t>(row) * words, words, 1},
                         panel, kPanel<M>, words);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kBlockVectors; ++j) {
        const auto p = M::load(queries.p + (row + i) * kGradientKeys + key + j * M::kLanes);
        block.sum[i][j] = M::multiply(p, block.sum[i][j]);
      }
    }
    if constexpr (M::kBfloat16) {
      store_pairs<M, kRows>(block, queries.ds_pairs + row / 2 * kGradientKeys + key, kGradientKeys);
      auto* narrow = reinterpret_cast<std::uint16_t*>(queries.ds);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
        for (int j = 0; j < kBlockVectors; ++j) {
          M::narrow(narrow + (row + i) * kGradientKeys + key + j * M::kLanes, block.sum[i][j]);
        }
      }
    } else {
      store_block<M, kRows>(block, queries.ds + row * kGradientKeys + key, kGradientKeys);
    }
  });
}

/// Adds to sums[key] the sum over rows [begin(key), end) of weights[row][key] * right[row]. Blocks
/// lie inside panels of keys: a panel has no weights of rows before the first that sees one of its
/// keys.
template <typename M>
void add_key_gradient(const float* weights, const float* right, int dim, int end,
                      const Visible& visible, float* sums, Prefetcher<M>& prefetcher) {
  const int first = visible.skipped / kPanel<M> * kPanel<M>;
  for (int d = 0; d < dim; d += kPanel<M>) {
    for (int panel = first; panel < visible.keys; panel += kPanel<M>) {
      const int begin_at = visible.skipped - panel, end_at = visible.keys - panel;
      for_blocks<M, kPanel<M>>(begin_at, end_at, [&](auto count, int at) {
        constexpr int kRows = decltype(count)::kRows;
        const int key = panel + at;
        const int begin = first_row_seeing(visible, key) / M::kDepth;
        const int depth = (end + M::kDepth - 1) / M::kDepth - begin;
        if (depth <= 0) return;
        prefetcher.step();
        auto block = zero_block<M, kRows>();
        accumulate<M, kRows>(block, {weights + begin * kGradientKeys + key, 1, kGradientKeys},
                             right + static_cast<std::int64_t>(begin) * dim + d, dim, depth);
        add_block<M, kRows>(block, sums + static_cast<std::int64_t>(key) * dim + d, dim);
      });
    }
  }
}

/// Computes dq[row] = sum over the keys that the row's block sees of dS[row][key] * key.
template <typename M>
void query_gradient(const BackwardKeys& keys, const BackwardQueries& queries, int dim, int begin,
                    int end, const Visible& visible, Prefetcher<M>& prefetcher) {
  constexpr int kWords = kGradientKeys / M::kDepth;
  const int skipped = visible.skipped / kPanel<M> * kPanel<M> / M::kDepth;
  const float* rows = keys.keys + static_cast<std::int64_t>(skipped) * dim;
  for (int d = 0; d < dim; d += kPanel<M>) {
    for_blocks<M, kGradientQueries>(begin, end, [&](auto count, int row) {
      constexpr int kRows = decltype(count)::kRows;
      prefetcher.step();
      const int last = row + kRows < visible.last ? row + kRows : visible.last;
      const int depth = (visible.of(last - 1) + M::kDepth - 1) / M::kDepth - skipped;
      auto block = zero_block<M, kRows>();
      accumulate<M, kRows>(block, {queries.ds + row * kWords + skipped, kWords, 1}, rows + d, dim,
                           depth);
      store_block<M, kRows>(block, queries.dq + static_cast<std::int64_t>(row) * dim + d, dim);
    });
  }
}

template <typename M>
void backward_step(const BackwardKeys& keys, const BackwardQueries& queries, int dim, float scale,
                   Visible visible, const Upcoming& upcoming) {
  constexpr int kRows = M::kBlockRows;
  const int end = visible.last;
  const int begin = first_row_seeing(visible, visible.skipped);
  const int panel = visible.skipped / kPanel<M> * kPanel<M>;
  const int panels = (visible.keys - panel + kPanel<M> - 1) / kPanel<M>;
  const int chunks = dim / kPanel<M>;
  const int query_blocks = (end - begin + kRows - 1) / kRows;
  const int blocks =
      2 * panels * query_blocks + 2 * chunks * panels * kPanel<M> / kRows + chunks * query_blocks;
  Prefetcher<M> prefetcher(upcoming, blocks);
  for (int key = panel; key < visible.keys; key += kPanel<M>) {
    const int first = first_row_seeing(visible, key);
    probability_panel<M>(keys, queries, dim, scale, key, first, end, visible, prefetcher);
    logit_gradient_panel<M>(keys, queries, dim, key, first, end, prefetcher);
  }
  add_key_gradient<M>(queries.p_pairs, queries.dout_pairs, dim, end, visible, keys.dv, prefetcher);
  add_key_gradient<M>(queries.ds_pairs, queries.q_pairs, dim, end, visible, keys.dk, prefetcher);
  query_gradient<M>(keys, queries, dim, begin, end, visible, prefetcher);
}

template <typename M>
void backward_load_keys(const BackwardKeys& tile, float* rows, int dim, Rows keys, Rows values) {
  const int words = dim / M::kDepth;
  const int padded = (keys.count + kPanel<M> - 1) / kPanel<M> * kPanel<M>;
  copy_rows<M>(values, dim, padded, rows);
  make_panels<M>(rows, padded, words, tile.value_panels);
  float* plain = M::kBfloat16 ? rows : tile.keys;
  copy_rows<M>(keys, dim, padded, plain);
  make_panels<M>(plain, padded, words, tile.key_panels);
  if constexpr (M::kBfloat16) pair_rows<M>(plain, padded, dim, tile.keys);
}

/// Loads lse and -delta of a tile. A row that saw no key gets probability 0 everywhere, not
/// e^(+inf).
template <typename M, int kRows>
void load_statistics(const BackwardQueries& tile, int count, SumRows lse, SumRows delta) {
  constexpr float kInfinity = __builtin_inff();
  for (int r = 0; r < kRows; ++r) {
    const bool inside = r < count;
    const float given = inside ? lse.data[r * lse.stride] : kInfinity;
    tile.lse[r] = given == -kInfinity ? kInfinity : given;
    tile.minus_delta[r] = inside ? -delta.data[r * delta.stride] : 0;
  }
}

template <typename M>
void backward_load_queries(const BackwardQueries& tile, int dim, Rows queries, Rotation rotation,
                           Rows dout, SumRows lse, SumRows delta) {
  load_queries<M>(queries, dim, kGradientQueries, rotation, tile.q);
  copy_rows<M>(dout, dim, kGradientQueries, tile.dout);
  if constexpr (M::kBfloat16) {
    pair_rows<M>(tile.q, kGradientQueries, dim, tile.q_pairs);
    pair_rows<M>(tile.dout, kGradientQueries, dim, tile.dout_pairs);
  }
  load_statistics<M, kGradientQueries>(tile, queries.count, lse, delta);
}

template <typename M>
void backward_end(const BackwardKeys& tile, int dim, float scale, SumRows dk, SumRows dv) {
  add_rows<M>(tile.dk, dim, scale, {}, dk);
  add_rows<M>(tile.dv, dim, 1.0f, {}, dv);
}

}  // namespace cadenza::kernels::cpu
