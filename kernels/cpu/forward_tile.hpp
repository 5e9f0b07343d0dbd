// SPDX-License-Identifier: Apache-2.0
// Forward core attention of one tile: online softmax (Milakov & Gimelshein 2018; Dao et al. 2022)
// over panels of queries. It computes S^T = K Q^T, so that a lane is a query: maximum, sum and mask
// need no reduction across lanes, and K and V are read in memory layout.
#pragma once

#include "pack_tile.hpp"

namespace cadenza::kernels::cpu {

/// Running maximum ("peak") of a row that has seen no key.
inline constexpr float kEmpty = -__builtin_inff();
/// Smallest peak of a row that has seen a key: tells a row whose scores all overflowed to -inf from
/// one that saw no key.
inline constexpr float kLeast = -__FLT_MAX__;

/// Keys of a tile as seen by one panel of queries.
struct PanelView {
  int keys = 0;        ///< keys that some query of the panel sees
  bool whole = false;  ///< every query sees all of them
  float start[64];     ///< per query, unless whole: it sees keys [start, limit)
  float limit[64];
};

template <typename M>
PanelView view_of(const Visible& visible, int row) {
  PanelView view;
  int fewest = visible.keys;
  int latest = 0;
  for (int i = 0; i < kPanel<M>; ++i) {
    const int begin = visible.begin_of(row + i);
    const int end = visible.of(row + i);
    const int seen = begin < end ? end : 0;
    view.start[i] = static_cast<float>(begin);
    view.limit[i] = static_cast<float>(seen);
    view.keys = seen > view.keys ? seen : view.keys;
    fewest = seen < fewest ? seen : fewest;
    latest = begin > latest ? begin : latest;
  }
  view.whole = latest == 0 && fewest == view.keys && view.keys % M::kBlockRows == 0 &&
               view.keys % M::kDepth == 0;
  return view;
}

/// Initial peak of queries that see keys [start, limit) of a tile.
template <typename M, bool kMasked>
[[gnu::always_inline]] inline typename M::Vector least_peak(typename M::Vector start,
                                                            typename M::Vector limit) {
  const auto least = M::broadcast(kLeast);
  return kMasked ? M::select(M::less(start, limit), least, M::broadcast(kEmpty)) : least;
}

template <typename M>
struct PanelState {
  typename M::Vector peak[kBlockVectors];
  typename M::Vector start[kBlockVectors];
  typename M::Vector limit[kBlockVectors];

  /// Starts with the queries in `view`, before their first score.
  template <bool kMasked>
  void begin(const PanelView& view) {
    for (int j = 0; j < kBlockVectors; ++j) {
      start[j] = M::load(view.start + j * M::kLanes);
      limit[j] = M::load(view.limit + j * M::kLanes);
      peak[j] = least_peak<M, kMasked>(start[j], limit[j]);
    }
  }
  /// Returns `x` for the queries that see `key`, `other` for the rest.
  [[gnu::always_inline]] typename M::Vector masked(int key, int j, typename M::Vector x,
                                                   typename M::Vector other) const {
    const auto at = M::broadcast(static_cast<float>(key));
    return M::select(M::less(at, start[j]), other, M::select(M::less(at, limit[j]), x, other));
  }
};

/// Computes scores of kRows keys from `key` on, masks them and updates the largest per query.
template <typename M, int kRows, bool kMasked>
[[gnu::always_inline]] inline void score_rows(const float* keys, int words, const float* queries,
                                              int key, PanelState<M>& state, float* scores) {
  auto block = zero_block<M, kRows>();
  accumulate<M, kRows>(block, {keys + static_cast<std::int64_t>(key) * words, words, 1}, queries,
                       kPanel<M>, words);
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlockVectors; ++j) {
      auto& s = block.sum[i][j];
      if constexpr (kMasked) {
        s = state.masked(key + i, j, s, M::broadcast(kEmpty));
      }
      state.peak[j] = M::max(state.peak[j], s);
    }
  }
  store_block<M, kRows>(block, scores + key * kPanel<M>, kPanel<M>);
}

/// Handles keys in whole blocks: rows beyond `count` are zero in scratch and masked.
template <typename M, bool kMasked>
void score_panel(const float* keys, int words, const float* queries, int count,
                 PanelState<M>& state, float* scores, Prefetcher<M>& prefetcher) {
  PanelState<M> local = state;
  for (int key = 0; key < count; key += M::kBlockRows) {
    prefetcher.step();
    score_rows<M, M::kBlockRows, kMasked>(keys, words, queries, key, local, scores);
  }
  state = local;
}

/// Turns scores into probabilities 2^((score - peak) * factor) and sums them. The difference comes
/// first: it is 0 for the largest score and never above, however large scores are; masked scores
/// are -inf.
template <typename M>
void exponentiate_panel(const typename M::Vector* peak, typename M::Vector factor, int count,
                        typename M::Vector* sums, const float* scores, float* probabilities) {
  typename M::Vector sum[kBlockVectors];
  for (int j = 0; j < kBlockVectors; ++j) sum[j] = M::zero();
  const auto probability = [&](int key, int j) __attribute__((always_inline)) {
    const auto s = M::load(scores + key * kPanel<M> + j * M::kLanes);
    const auto p = exponential2<M>(M::subtract(s, peak[j]), factor);
    sum[j] = M::add(sum[j], p);
    return p;
  };
  for (int key = 0; key < count; key += M::kDepth) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlockVectors; ++j) {
      float* to = probabilities + (key / M::kDepth) * kPanel<M> + j * M::kLanes;
      if constexpr (M::kBfloat16) {
        const auto first = probability(key, j);
        M::store(to, M::pair(first, probability(key + 1, j)));
      } else {
        M::store(to, probability(key, j));
      }
    }
  }
  for (int j = 0; j < kBlockVectors; ++j) sums[j] = sum[j];
}

/// Computes sum = sum * decay + added for a vector of queries; collects the rounding errors in
/// `lost`.
template <typename M>
[[gnu::always_inline]] inline void add_sums(typename M::Vector added, const float* decay,
                                            float* sum, float* lost) {
  const auto keep = M::load(decay);
  const auto before = M::multiply(M::load(sum), keep);
  const auto addend = M::fma(M::load(lost), keep, added);
  const auto total = M::add(before, addend);
  const auto taken = M::subtract(total, before);  // of addend; the rest is lost (Knuth's two-sum)
  const auto kept = M::subtract(total, taken);    // of before
  M::store(lost, M::add(M::subtract(before, kept), M::subtract(addend, taken)));
  M::store(sum, total);
}

/// Computes out[row] = decay[row] * out[row] + sum over keys of p[key][row] * value[key].
template <typename M>
void add_values(const float* probabilities, const float* values, int dim, int depth,
                const float* decay, float* out, Prefetcher<M>& prefetcher) {
  for (int d = 0; d < dim; d += kPanel<M>) {
    for_blocks<M, kPanel<M>>(0, kPanel<M>, [&](auto count, int row) {
      constexpr int kRows = decltype(count)::kRows;
      prefetcher.step();
      auto block = zero_block<M, kRows>();
      accumulate<M, kRows>(block, {probabilities + row, 1, kPanel<M>}, values + d, dim, depth);
      add_block<M, kRows>(block, decay + row, out + static_cast<std::int64_t>(row) * dim + d, dim);
    });
  }
}

/// Adds one tile of keys to one panel of queries. A query that sees no key keeps its state: its
/// decay is exactly 1 or, if its state is still empty, multiplies zeros.
template <typename M, bool kMasked>
void forward_panel(const ForwardHead& head, const ForwardKeys& tile, int dim, float scale, int row,
                   const PanelView& view, Prefetcher<M>& prefetcher) {
  constexpr int kLanes = M::kLanes;
  const int words = dim / M::kDepth;
  const int step = M::kBlockRows;
  const int blocked = (view.keys + step - 1) / step * step;
  const int count = (view.keys + M::kDepth - 1) / M::kDepth * M::kDepth;
  const auto factor = M::broadcast(scale * kLog2E);
  PanelState<M> state;
  state.template begin<kMasked>(view);
  score_panel<M, kMasked>(tile.keys, words, head.queries + static_cast<std::int64_t>(row) * words,
                          blocked, state, tile.scores, prefetcher);
  typename M::Vector peaks[kBlockVectors], sums[kBlockVectors];
  alignas(64) float decay[kPanel<M>];
  for (int j = 0; j < kBlockVectors; ++j) {
    const auto before = M::load(head.peak + row + j * kLanes);
    const auto peak = M::max(before, state.peak[j]);
    const auto empty = M::broadcast(kEmpty);
    peaks[j] = M::select(M::less(empty, peak), peak, M::zero());  // never (-inf) - (-inf)
    M::store(decay + j * kLanes, exponential2<M>(M::subtract(before, peaks[j]), factor));
    M::store(head.peak + row + j * kLanes, peak);
  }
  exponentiate_panel<M>(peaks, factor, count, sums, tile.scores, tile.probabilities);
  for (int j = 0; j < kBlockVectors; ++j) {
    const int at = row + j * kLanes;
    add_sums<M>(sums[j], decay + j * kLanes, head.sum + at, head.lost + at);
  }
  add_values<M>(tile.probabilities, tile.values, dim, count / M::kDepth, decay,
                head.out + static_cast<std::int64_t>(row) * dim, prefetcher);
}

template <typename M>
void forward_step(const ForwardHead& head, const ForwardKeys& tile, int dim, float scale,
                  Visible visible, const Upcoming& upcoming) {
  const int first = visible.first - visible.first % kPanel<M>;
  const int panels = (visible.last - first + kPanel<M> - 1) / kPanel<M>;
  const int blocks = panels * (visible.keys / M::kBlockRows + dim / M::kBlockRows);
  Prefetcher<M> prefetcher(upcoming, blocks);
  for (int row = first; row < visible.last; row += kPanel<M>) {
    const PanelView view = view_of<M>(visible, row);
    if (view.keys == 0) continue;
    if (view.whole) {
      forward_panel<M, false>(head, tile, dim, scale, row, view, prefetcher);
    } else {
      forward_panel<M, true>(head, tile, dim, scale, row, view, prefetcher);
    }
  }
}

template <typename M>
void forward_load_queries(const ForwardHead& head, const ForwardKeys& scratch, int dim,
                          Rows queries, Rotation rotation) {
  load_queries<M>(queries, dim, kQueryTile, rotation, scratch.rows);
  make_panels<M>(scratch.rows, kQueryTile, dim / M::kDepth, head.queries);
}

template <typename M>
void forward_begin(const ForwardHead& head, int dim) {
  for (int r = 0; r < kQueryTile; ++r) {
    head.peak[r] = kEmpty;
    head.sum[r] = 0;
    head.lost[r] = 0;
  }
  zero_rows<M>(head.out, std::int64_t{kQueryTile} * dim);
}

template <typename M>
void forward_load(const ForwardKeys& tile, int dim, Rows keys, Rows values) {
  constexpr int kStep = M::kBlockRows;
  const int padded = (keys.count + kStep - 1) / kStep * kStep;
  copy_rows<M>(keys, dim, padded, tile.keys);
  if constexpr (M::kBfloat16) {
    copy_rows<M>(values, dim, padded, tile.rows);
    pair_rows<M>(tile.rows, padded, dim, tile.values);
  } else {
    copy_rows<M>(values, dim, padded, tile.values);
  }
}

/// Weights that merge a row into memory: its sums times `now` plus the memory's values times
/// `before`.
struct RowMerge {
  bool changes = false;  ///< false: the row saw no key and keeps its bits
  float now = 0;
  float before = 0;  ///< 0: the memory's values are ignored and may be anything

  /// Writes out = now * sums + before * out for some elements.
  template <typename M>
  [[gnu::always_inline]] void write(typename M::Vector sums, float* out) const {
    auto merged = M::multiply(sums, M::broadcast(now));
    if (before != 0) merged = M::fma(M::load(out), M::broadcast(before), merged);
    M::store(out, merged);
  }
};

/// Merges a row's state with its lse in memory, where (O, lse) counts as one term e^lse. If all
/// scores that it saw are -inf (an overflow), there is no softmax: NaN.
template <typename M>
RowMerge merge_row(const ForwardHead& head, int row, float scale, float& lse) {
  const double sum = static_cast<double>(head.sum[row]) + static_cast<double>(head.lost[row]);
  const float peak = head.peak[row];
  if (peak == kEmpty && sum == 0) return {};
  const double logit = static_cast<double>(peak) * static_cast<double>(scale);
  const double own = sum > 0 ? logit + __builtin_log(sum) : __builtin_nan("");
  const auto old = static_cast<double>(lse);
  if (lse == kEmpty) {
    lse = static_cast<float>(own);
    return {true, static_cast<float>(1 / sum), 0};
  }
  const double high = own < old ? old : own;
  const double now = __builtin_exp(own - high);
  const double before = __builtin_exp(old - high);
  const double both = now + before;
  lse = static_cast<float>(high + __builtin_log(both));
  return {true, static_cast<float>(now / (both * sum)), static_cast<float>(before / both)};
}

template <typename M>
void forward_end(const ForwardHead& head, int dim, float scale, SumRows out, SumRows lse) {
  for (int r = 0; r < out.count; ++r) {
    const RowMerge merge = merge_row<M>(head, r, scale, lse.data[r * lse.stride]);
    if (!merge.changes) continue;
    const float* from = head.out + static_cast<std::int64_t>(r) * dim;
    float* to = out.data + r * out.stride;
    for (int d = 0; d < dim; d += M::kLanes) merge.write<M>(M::load(from + d), to + d);
  }
}

}  // namespace cadenza::kernels::cpu
