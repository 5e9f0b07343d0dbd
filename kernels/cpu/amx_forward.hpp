// SPDX-License-Identifier: Apache-2.0
// Forward core attention of one tile with tile products: S^T = K Q^T and O^T = V^T P^T over panels
// of 32 queries. So a lane of the softmax between them is a query, and P is written in the layout
// that the second product reads. The scores of a panel are computed while the vector units compute
// the exponentials of the previous panel; sums stay transposed until the end.
//
// Scratch: queries [panels][W][32] words; out [panels][D][32]; keys [kKeyTile][W] words; values
// [D][kKeyTile / 2] words; scores two panels of [kKeyTile][32]; probabilities [kKeyTile / 2][32]
// words.
#pragma once

#include "amx_product.hpp"
#include "forward_tile.hpp"

namespace cadenza::kernels::cpu {

/// Finds the largest score per query of a panel; sets masked scores to -inf.
template <typename M, bool kMasked>
class Maxima {
 public:
  Maxima(float* scores, const PanelView& view, int keys)
      : scores_(scores), left_((keys + 1) / 2), key_(M::zero()) {
    for (int j = 0; j < kBlockVectors; ++j) {
      start_[j] = M::load(view.start + j * M::kLanes);
      limit_[j] = M::load(view.limit + j * M::kLanes);
      for (auto& peak : peak_) peak[j] = least_peak<M, kMasked>(start_[j], limit_[j]);
    }
  }
  int left() const { return left_; }
  /// Handles two keys.
  [[gnu::always_inline]] void advance() {
#pragma GCC unroll 2
    for (auto& peak : peak_) {
#pragma GCC unroll 2
      for (int j = 0; j < kBlockVectors; ++j) {
        float* at = scores_ + j * M::kLanes;
        auto s = M::load(at);
        if constexpr (kMasked) {
          s = M::select(M::less(key_, limit_[j]), s, M::broadcast(kEmpty));
          s = M::select(M::less(key_, start_[j]), M::broadcast(kEmpty), s);
          M::store(at, s);
        }
        peak[j] = M::max(peak[j], s);
      }
      scores_ += kPanel<M>;
      if constexpr (kMasked) key_ = M::add(key_, M::broadcast(1.0f));
    }
    --left_;
  }
  typename M::Vector peak(int j) const {
    return M::max(peak_[0][j], peak_[1][j]);
  }

 private:
  float* scores_;
  int left_;
  typename M::Vector key_;
  typename M::Vector start_[kBlockVectors];
  typename M::Vector limit_[kBlockVectors];
  typename M::Vector peak_[2][kBlockVectors];
};

/// Turns scores into probabilities 2^((score - peak) * factor), in pairs of keys, and sums them.
template <typename M>
class Probabilities {
 public:
  using Vector = typename M::Vector;
  Probabilities(const float* scores, float* to, const Vector* peak, Vector factor, int keys)
      : scores_(scores), to_(to), left_(keys / 2), factor_(factor) {
    for (int j = 0; j < kBlockVectors; ++j) {
      peak_[j] = peak[j];
      sum_[j] = M::zero();
    }
  }
  int left() const { return left_; }
  [[gnu::always_inline]] void advance() {
#pragma GCC unroll 2
    for (int j = 0; j < kBlockVectors; ++j) {
      const Vector first = probability(scores_ + j * M::kLanes, j);
      const Vector second = probability(scores_ + kPanel<M> + j * M::kLanes, j);
      sum_[j] = M::add(sum_[j], M::add(first, second));
      M::store(to_ + j * M::kLanes, M::pair(first, second));
    }
    scores_ += 2 * kPanel<M>;
    to_ += kPanel<M>;
    --left_;
  }
  Vector sum(int j) const {
    return sum_[j];
  }

 private:
  /// Subtracts first: the difference is 0 for the largest score and never above, however large
  /// scores are.
  [[gnu::always_inline]] Vector probability(const float* score, int j) const {
    return M::exponential2(M::multiply(M::subtract(M::load(score), peak_[j]), factor_));
  }
  const float* scores_;
  float* to_;
  int left_;
  Vector factor_;
  Vector peak_[kBlockVectors];
  Vector sum_[kBlockVectors];
};

/// Computes out = out * decay + sums for a block of 32 elements of head_dim and 32 queries.
template <typename M>
class Addition {
 public:
  using Vector = typename M::Vector;
  Addition() = default;
  Addition(const float* sums, float* out, const float* decay)
      : sums_(sums), out_(out), left_(kTileBlock) {
    for (int j = 0; j < kBlockVectors; ++j) decay_[j] = M::load(decay + j * M::kLanes);
  }
  int left() const { return left_; }
  [[gnu::always_inline]] void advance() {
#pragma GCC unroll 2
    for (int j = 0; j < kBlockVectors; ++j) {
      float* at = out_ + j * M::kLanes;
      M::store(at, M::fma(M::load(at), decay_[j], M::load(sums_ + j * M::kLanes)));
    }
    sums_ += kPanel<M>;
    out_ += kPanel<M>;
    --left_;
  }

 private:
  const float* sums_ = nullptr;
  float* out_ = nullptr;
  int left_ = 0;
  Vector decay_[kBlockVectors] = {};
};

/// Computes S^T of a panel for `keys` keys, in whole blocks.
template <typename M, typename Between>
[[gnu::always_inline]] inline void multiply_scores(const ForwardHead& head, const ForwardKeys& tile,
                                                   int dim, int row, int keys, float* scores,
                                                   Prefetcher<M>& prefetcher, Between between) {
  const std::int64_t row_bytes = std::int64_t{dim} * 2;
  constexpr std::int64_t kPanelBytes = kPanel<M> * sizeof(float);
  const Factor queries{head.queries + static_cast<std::int64_t>(row) * (dim / 2), kPanelBytes,
                       kTileDepth / 2 * kPanelBytes};
  Factor left{tile.keys, row_bytes, kTileDepth * 2};
  for (int key = 0; key < keys; key += kTileBlock) {
    prefetcher.step();
    zero_tiles<M>();
    multiply_block<M>(left, queries, dim / kTileDepth, between);
    store_tiles<M>(scores + key * kPanel<M>, kPanel<M>);
    left.data = left.at(kTileBlock * row_bytes);
  }
  between.finish();
}

/// Computes O^T of a panel: the sum over a tile's keys starts from zero and is then added with
/// decay.
template <typename M, typename Between>
[[gnu::always_inline]] inline void multiply_values(const ForwardHead& head, const ForwardKeys& tile,
                                                   int dim, int row, int keys, const float* decay,
                                                   float* sums, Prefetcher<M>& prefetcher,
                                                   Between between) {
  constexpr std::int64_t kRowBytes = kKeyTile * 2;
  constexpr std::int64_t kPanelBytes = kPanel<M> * sizeof(float);
  const Factor probabilities{tile.probabilities, kPanelBytes, kTileDepth / 2 * kPanelBytes};
  const int steps = keys / kTileDepth;
  float* out = head.out + static_cast<std::int64_t>(row) * dim;
  Factor left{tile.values, kRowBytes, kTileDepth * 2};
  Addition<M> addition;
  for (int d = 0; d < dim; d += kTileBlock) {
    prefetcher.step();
    Spread<Addition<M>> adding(addition, kBlockProducts * steps);
    Both<Spread<Addition<M>>, Between> both{adding, between};
    zero_tiles<M>();
    multiply_block<M>(left, probabilities, steps, both);
    adding.finish();
    float* block = sums + d / kTileBlock % 2 * kTileBlock * kPanel<M>;
    store_tiles<M>(block, kPanel<M>);
    addition = Addition<M>(block, out + static_cast<std::int64_t>(d) * kPanel<M>, decay);
    left.data = left.at(kTileBlock * kRowBytes);
  }
  while (addition.left() > 0) addition.advance();
  between.finish();
}

/// A panel whose scores are computed.
template <typename M>
struct ScoredPanel {
  int row = 0;
  int keys = 0;  ///< in whole blocks; 0: no panel
  float* scores = nullptr;
  typename M::Vector peak[kBlockVectors];
  alignas(64) float decay[kPanel<M>];
};

/// Updates a panel's state to the maximum of its new scores.
template <typename M, bool kMasked>
[[gnu::always_inline]] inline void move_peak(const ForwardHead& head, float factor,
                                             const Maxima<M, kMasked>& maxima,
                                             ScoredPanel<M>& panel) {
  for (int j = 0; j < kBlockVectors; ++j) {
    float* at = head.peak + panel.row + j * M::kLanes;
    const auto before = M::load(at);
    const auto peak = M::max(before, maxima.peak(j));
    const auto empty = M::broadcast(kEmpty);
    M::store(at, peak);
    panel.peak[j] = M::select(M::less(empty, peak), peak, M::zero());  // never (-inf) - (-inf)
    const auto moved = M::multiply(M::subtract(before, panel.peak[j]), M::broadcast(factor));
    M::store(panel.decay + j * M::kLanes, M::exponential2(moved));
  }
}

template <typename M>
class ForwardStep {
 public:
  ForwardStep(const ForwardHead& head, const ForwardKeys& tile, int dim, float scale,
              const Upcoming& upcoming, int blocks)
      : head_(head),
        tile_(tile),
        dim_(dim),
        factor_(scale * kLog2E),
        prefetcher_(upcoming, blocks) {}

  /// Computes the scores of the panel at `row`, then finishes the previous panel.
  void add(int row, const PanelView& view) {
    if (view.whole) {
      add_panel<false>(row, view);
    } else {
      add_panel<true>(row, view);
    }
  }
  /// Finishes the last panel.
  void finish() {
    if (panel_.keys == 0) return;
    auto probabilities = exponentials();
    Spread<Probabilities<M>>(probabilities, 0).finish();
    add_sums_of(probabilities);
    multiply_values<M>(head_, tile_, dim_, panel_.row, panel_.keys, panel_.decay, panel_.scores,
                       prefetcher_, Idle{});
  }

 private:
  template <bool kMasked>
  void add_panel(int row, const PanelView& view) {
    const int keys = round_up(view.keys, kTileBlock);
    float* scores = tile_.scores + (row / kPanel<M> % 2) * kKeyTile * kPanel<M>;
    if (panel_.keys == 0) {
      multiply_scores<M>(head_, tile_, dim_, row, keys, scores, prefetcher_, Idle{});
      Maxima<M, kMasked> maxima(scores, view, keys);
      Spread<Maxima<M, kMasked>>(maxima, 0).finish();
      begin(row, keys, scores, maxima);
      return;
    }
    auto probabilities = exponentials();
    const int score_products = kBlockProducts * (keys / kTileBlock) * (dim_ / kTileDepth);
    multiply_scores<M>(head_, tile_, dim_, row, keys, scores, prefetcher_,
                       Spread<Probabilities<M>>(probabilities, score_products));
    add_sums_of(probabilities);
    Maxima<M, kMasked> maxima(scores, view, keys);
    const int value_products = kBlockProducts * (dim_ / kTileBlock) * (panel_.keys / kTileDepth);
    multiply_values<M>(head_, tile_, dim_, panel_.row, panel_.keys, panel_.decay, panel_.scores,
                       prefetcher_, Spread<Maxima<M, kMasked>>(maxima, value_products));
    begin(row, keys, scores, maxima);
  }
  template <bool kMasked>
  void begin(int row, int keys, float* scores, const Maxima<M, kMasked>& maxima) {
    panel_.row = row;
    panel_.keys = keys;
    panel_.scores = scores;
    move_peak(head_, factor_, maxima, panel_);
  }
  [[gnu::always_inline]] Probabilities<M> exponentials() const {
    return {panel_.scores, tile_.probabilities, panel_.peak, M::broadcast(factor_), panel_.keys};
  }
  [[gnu::always_inline]] void add_sums_of(const Probabilities<M>& probabilities) const {
    for (int j = 0; j < kBlockVectors; ++j) {
      const int at = panel_.row + j * M::kLanes;
      add_sums<M>(probabilities.sum(j), panel_.decay + j * M::kLanes, head_.sum + at,
                  head_.lost + at);
    }
  }

  const ForwardHead& head_;
  const ForwardKeys& tile_;
  int dim_;
  float factor_;
  Prefetcher<M> prefetcher_;
  ScoredPanel<M> panel_;
};

template <typename M>
void amx_forward_step(const ForwardHead& head, const ForwardKeys& tile, int dim, float scale,
                      Visible visible, const Upcoming& upcoming) {
  const int first = visible.first - visible.first % kPanel<M>;
  const int panels = (visible.last - first + kPanel<M> - 1) / kPanel<M>;
  const int blocks = panels * (visible.keys / kTileBlock + dim / kTileBlock);
  ForwardStep<M> step(head, tile, dim, scale, upcoming, blocks);
  for (int row = first; row < visible.last; row += kPanel<M>) {
    const PanelView view = view_of<M>(visible, row);
    if (view.keys > 0) step.add(row, view);
  }
  step.finish();
}

template <typename M>
void amx_forward_load(const ForwardKeys& tile, int dim, Rows keys, Rows values) {
  const int padded = round_up(keys.count, kTileBlock);
  copy_rows<M>(keys, dim, padded, tile.keys);
  transpose_pairs<M>(values, dim, padded, tile.values, kKeyTile / M::kDepth);
}

template <typename M>
void amx_forward_end(const ForwardHead& head, int dim, float scale, SumRows out, SumRows lse) {
  constexpr int kLanes = M::kLanes;
  alignas(64) float rows[kLanes * kLanes];
  RowMerge merges[kLanes];
  for (int row = 0; row < out.count; row += kLanes) {
    const int count = out.count - row < kLanes ? out.count - row : kLanes;
    for (int r = 0; r < count; ++r) {
      merges[r] = merge_row<M>(head, row + r, scale, lse.data[(row + r) * lse.stride]);
    }
    const float* from = head.out + static_cast<std::int64_t>(row / kPanel<M>) * kPanel<M> * dim;
    for (int d = 0; d < dim; d += kLanes) {
      M::transpose(from + d * kPanel<M> + row % kPanel<M>, kPanel<M>, rows, kLanes);
      for (int r = 0; r < count; ++r) {
        if (!merges[r].changes) continue;
        merges[r].template write<M>(M::load(rows + r * kLanes),
                                    out.data + (row + r) * out.stride + d);
      }
    }
  }
}

}  // namespace cadenza::kernels::cpu
