// SPDX-License-Identifier: Apache-2.0
// First of two backward passes on Hopper: a unit is 128 queries of one head and sums dQ. The second
// one (key_gradient.hpp) sums dK and dV; both compute the logits, seven products in all, so that
// nothing is written by two blocks and no sum needs atomics. Probabilities come from the merged
// lse, so gradients of tasks simply add (FlashAttention-2, algorithm 2).
#pragma once

#include "query_units.hpp"

namespace cadenza::kernels::sm90 {

/// lse in units of log2, for probability(). A row without keys has lse = -inf; +inf makes all its
/// probabilities 0.
CADENZA_DEVICE float usable_lse(float lse) {
  return lse == -mma::kInfinity ? mma::kInfinity : lse * mma::kLog2e;
}

/// e^(score * scale - lse), `scale` and `lse` in units of log2. Above 1 by rounding alone; NaN
/// stays.
template <typename Thread>
CADENZA_DEVICE float probability(const Thread& thread, float score, float scale, float lse) {
  const float above = thread.fma(score, scale, -lse);
  return thread.exp2(above > 0 ? 0 : above);
}

/// Gradient of a score times 1 / scale. Of a tile that is not seen as a whole (`all`), what is not
/// seen has probability 0 and may be anything, also NaN.
CADENZA_DEVICE float score_gradient(bool all, float probability, float dprobability, float delta) {
  return !all && probability == 0 ? 0 : probability * (dprobability - delta);
}

template <int kDim>
using QueryGradientLayout = SharedLayout<kDim, 2, 1, kKeys, 2, 0>;

template <int kDim, typename Thread>
using QueryGradientLoader = QueryUnitLoader<QueryGradientLayout<kDim>, Thread>;

template <int kDim, typename Thread>
class QueryGradientConsumer : public Consumer<QueryGradientLayout<kDim>, Thread> {
  using Layout = QueryGradientLayout<kDim>;
  using Base = Consumer<Layout, Thread>;
  using Base::first_row, Base::problem_, Base::row, Base::thread_, Base::tiles_;

 public:
  using Base::Base;

  CADENZA_DEVICE void run() {
    for (TileInfo tile = this->next_tile(); tile.unit >= 0; tile = this->next_tile()) {
      const Unit& unit = problem_.units[tile.unit];
      if (tile.begins_segment) {
        load_statistics(unit);
        clear(dq_);
        this->wait_segment();
      }
      this->wait_second();
      if (!tile.visible.sees_none(first_row(), kWarpgroupRows, 0, kKeys)) {
        differentiate(tile.visible);
      }
      this->release(Layout::empty(tiles_.slot(), 0));
      this->release(Layout::empty(tiles_.slot(), 1));
      tiles_.advance();
      if (!tile.ends_segment) continue;
      this->release_segment();
      add_gradient(unit, problem_.rotations[tile.rotation]);
    }
  }

 private:
  static constexpr int kTiles = kKeys / 8;

  CADENZA_DEVICE void load_statistics(const Unit& unit) {
    const Queries& buffer = problem_.queries[unit.buffer];
    const auto lse = head_rows<1>(buffer.lse, buffer, unit.begin, unit.head_begin);
    const auto delta = head_rows<1>(buffer.delta, buffer, unit.begin, unit.head_begin);
    CADENZA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const bool inside = row(half) < unit.end - unit.begin;
      lse_[half] = inside ? usable_lse(lse.data[row(half) * lse.stride]) : mma::kInfinity;
      delta_[half] = inside ? delta.data[row(half) * delta.stride] : 0;
    }
  }

  CADENZA_DEVICE void differentiate(const Visible& visible) {
    const unsigned keys = this->tile(tiles_.slot(), 0);
    const unsigned values = this->tile(tiles_.slot(), 1);
    float scores[kTiles][4];
    float dscores[kTiles][4];
    unsigned packed[kTiles / 2][4];
    thread_.begin_products();
    multiply_rows<kDim>(thread_, this->segment(0), first_row(), keys, scores);
    thread_.commit_products();
    multiply_rows<kDim>(thread_, this->segment(1), first_row(), values, dscores);
    thread_.commit_products();
    thread_.template wait_products<1>(scores);
    const bool all = visible.sees_all(first_row(), kWarpgroupRows, 0, kKeys);
    if (!all) {
      apply_mask(
          thread_, [&](int half) { return keys_of(visible, row(half)); }, scores);
    }
    recompute_probabilities(scores);
    thread_.end_basic_block(scores[0][0]);
    thread_.template wait_products<0>(dscores);
    if (all) {
      subtract_delta<true>(scores, dscores);
    } else {
      subtract_delta<false>(scores, dscores);
    }
    pack(thread_, dscores, packed);
    thread_.pin(dq_);
    thread_.begin_products();
    multiply_columns<kDim>(thread_, packed, keys, dq_);
    thread_.commit_products();
    thread_.template wait_products<0>(dq_);
  }

  template <bool kAll>
  CADENZA_DEVICE void subtract_delta(const float (&scores)[kTiles][4],
                                     float (&dscores)[kTiles][4]) const {
    CADENZA_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      CADENZA_UNROLL
      for (int i = 0; i < 4; ++i) {
        dscores[tile][i] = score_gradient(kAll, scores[tile][i], dscores[tile][i], delta_[i / 2]);
      }
    }
  }

  CADENZA_DEVICE void recompute_probabilities(float (&scores)[kTiles][4]) const {
    const float scale = problem_.scale * mma::kLog2e;
    CADENZA_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      CADENZA_UNROLL
      for (int i = 0; i < 4; ++i) {
        scores[tile][i] = probability(thread_, scores[tile][i], scale, lse_[i / 2]);
      }
    }
  }

  /// Adds scale * (dQ turned back) to memory: the gradient of the queries that were not rotated.
  /// The two elements of a pair are sums of one thread.
  CADENZA_DEVICE void add_gradient(const Unit& unit, const Rotation& rotation) {
    const Queries& buffer = problem_.queries[unit.buffer];
    const auto to = head_rows<kDim>(buffer.dq, buffer, unit.begin, unit.head_begin);
    CADENZA_UNROLL
    for (int half = 0; half < 2; ++half) {
      if (row(half) >= unit.end - unit.begin) continue;
      const std::int64_t table =
          table_at(rotation, unit.begin - buffer.begin + row(half), problem_.half);
      const int column = sum_column(thread_.index());
      float turned[kDim / 8][2];
      CADENZA_UNROLL
      for (int tile = 0; tile < kDim / 16; ++tile) {
        CADENZA_UNROLL
        for (int i = 0; i < 2; ++i) {
          const int d = tile * 8 + column + i;
          const float low = dq_[tile][2 * half + i] * problem_.scale;
          const float high = dq_[tile + kDim / 16][2 * half + i] * problem_.scale;
          const float cos = problem_.half > 0 ? problem_.cos[table + d] : 1;
          const float sin = problem_.half > 0 ? problem_.sin[table + d] : 0;
          turned[tile][i] = low * cos + high * sin;
          turned[tile + kDim / 16][i] = high * cos - low * sin;
        }
      }
      mma::add_to_row<kDim / 8>(to.data + row(half) * to.stride + column,
                                [&](int tile, int i) { return turned[tile][i]; });
    }
  }

  float lse_[2];
  float delta_[2];
  float dq_[kDim / 8][4];  ///< of the rotated queries
};

}  // namespace cadenza::kernels::sm90
