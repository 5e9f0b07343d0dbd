// SPDX-License-Identifier: Apache-2.0
// Forward pass on Hopper: a unit is 128 queries of one head, 64 for each computing warpgroup, which
// keeps their maximum, sum and O in registers (FlashAttention-2, algorithm 1). The logits of the
// next tile are multiplied before the probabilities of this one, so that a warpgroup's exponentials
// run beside products; and the two warpgroups take turns in issuing products, so that one computes
// exponentials while the other multiplies (FlashAttention-3, section 3).
#pragma once

#include <cmath>

#include "query_units.hpp"

namespace cadenza::kernels::sm90 {

template <int kDim>
using ForwardLayout = SharedLayout<kDim, 1, 2, kKeys, 2, 0>;

template <int kDim, typename Thread>
using ForwardLoader = QueryUnitLoader<ForwardLayout<kDim>, Thread>;

template <int kDim, typename Thread>
class ForwardConsumer : public Consumer<ForwardLayout<kDim>, Thread> {
  using Layout = ForwardLayout<kDim>;
  using Base = Consumer<Layout, Thread>;
  using Base::first_row, Base::group, Base::problem_, Base::row, Base::thread_, Base::tiles_;

 public:
  using Base::Base;

  CADENZA_DEVICE void run() {
    if (group() == 1) end_turn();  // the first turn is the other's
    for (TileInfo tile = this->next_tile(); tile.unit >= 0; tile = this->next_tile()) {
      attend(tile);
      const Unit& unit = problem_.units[tile.unit];
      merge(unit);
    }
  }

 private:
  static constexpr int kTiles = kKeys / 8;

  // The warpgroups' turns: barrier 1 + group is its own.
  CADENZA_DEVICE void begin_turn() { thread_.sync(1 + group(), kConsumers * kWarpgroup); }
  CADENZA_DEVICE void end_turn() { thread_.arrive(2 - group(), kConsumers * kWarpgroup); }

  /// All tiles of a unit, from its first one on, which is there.
  CADENZA_DEVICE void attend(TileInfo tile) {
    clear(out_);
    row_max_[0] = row_max_[1] = -mma::kInfinity;
    row_sum_[0] = row_sum_[1] = 0;
    float scores[kTiles][4];
    unsigned probabilities[kTiles / 2][4];
    float decay[2];
    begin_scores(tile, scores);
    thread_.template wait_products<0>(scores);
    end_scores(tile);
    online_softmax(tile.visible, scores, decay);
    pack(thread_, scores, probabilities);
    while (!tile.ends_unit) {
      Ring<Layout::kTileSlots> before = tiles_;
      tiles_.advance();
      tile = this->next_tile();
      begin_turn();
      begin_scores(tile, scores);
      begin_out(before, probabilities);
      end_turn();
      thread_.template wait_products<1>(scores);
      end_scores(tile);
      online_softmax(tile.visible, scores, decay);
      thread_.end_basic_block(row_sum_[0] + row_sum_[1]);
      thread_.template wait_products<0>(out_);
      this->release(Layout::empty(before.slot(), 1));
      rescale_o(decay);
      pack(thread_, scores, probabilities);
    }
    begin_out(tiles_, probabilities);
    thread_.template wait_products<0>(out_);
    this->release(Layout::empty(tiles_.slot(), 1));
    tiles_.advance();
  }

  CADENZA_DEVICE void begin_scores(const TileInfo& tile, float (&scores)[kTiles][4]) {
    if (tile.begins_segment) this->wait_segment();
    thread_.begin_products();
    multiply_rows<kDim>(thread_, this->segment(0), first_row(), this->tile(tiles_.slot(), 0),
                        scores);
    thread_.commit_products();
  }
  CADENZA_DEVICE void end_scores(const TileInfo& tile) {
    this->release(Layout::empty(tiles_.slot(), 0));
    if (tile.ends_segment) this->release_segment();
  }
  CADENZA_DEVICE void begin_out(const Ring<Layout::kTileSlots>& at,
                                const unsigned (&probabilities)[kTiles / 2][4]) {
    thread_.wait(this->barrier(Layout::full(at.slot(), 1)), at.parity());
    thread_.pin(out_);
    thread_.begin_products();
    multiply_columns<kDim>(thread_, probabilities, this->tile(at.slot(), 1), out_);
    thread_.commit_products();
  }

  /// Scores to probabilities. What was summed before decays by the growth of a row's maximum. A row
  /// that sees nothing keeps its state.
  CADENZA_DEVICE void online_softmax(const Visible& visible, float (&scores)[kTiles][4],
                                     float (&decay)[2]) {
    const bool all = visible.sees_all(first_row(), kWarpgroupRows, 0, kKeys);
    if (!all) {
      apply_mask(
          thread_, [&](int half) { return keys_of(visible, row(half)); }, scores);
    }
    float highest[2][2];  // of even and odd columns: short chains of dependent instructions
    CADENZA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const bool sees = all || visible.sees_some(row(half), kKeys);
      highest[half][0] = highest[half][1] =
          sees ? fmaxf(row_max_[half], mma::kLeast) : row_max_[half];
    }
    CADENZA_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      CADENZA_UNROLL
      for (int i = 0; i < 4; ++i) {
        highest[i / 2][i % 2] = fmaxf(highest[i / 2][i % 2], scores[tile][i]);
      }
    }
    float top[2] = {fmaxf(highest[0][0], highest[0][1]), fmaxf(highest[1][0], highest[1][1])};
    CADENZA_UNROLL
    for (int bits = 1; bits < 4; bits *= 2) {
      CADENZA_UNROLL
      for (int half = 0; half < 2; ++half) {
        top[half] = fmaxf(top[half], thread_.exchanged(top[half], bits));
      }
    }
    float from[2];
    CADENZA_UNROLL
    for (int half = 0; half < 2; ++half) from[half] = top[half] == -mma::kInfinity ? 0 : top[half];
    const float scale = problem_.scale * mma::kLog2e;
    if (fmaxf(fabsf(from[0]), fabsf(from[1])) * scale < kHugeLogit) {
      exponentiate<false>(scale, from, scores, decay);
    } else {
      exponentiate<true>(scale, from, scores, decay);
    }
    row_max_[0] = top[0];
    row_max_[1] = top[1];
  }

  /// Of logits beyond this, in units of log2, the rounding of a product is no small power of 2.
  static constexpr float kHugeLogit = 1 << 20;

  /// Scores to powers of 2 of their distance to `from`, and what was summed before decays. All
  /// powers of a row are relative to the same rounded product, one instruction each. Where logits
  /// are huge the difference comes before the product: it is 0 for the largest, however large.
  template <bool kHuge>
  CADENZA_DEVICE void exponentiate(float scale, const float (&from)[2], float (&scores)[kTiles][4],
                                   float (&decay)[2]) {
    float shift[2];
    CADENZA_UNROLL
    for (int half = 0; half < 2; ++half) {
      shift[half] = from[half] * scale;
      decay[half] = thread_.exp2(kHuge ? (row_max_[half] - from[half]) * scale
                                       : row_max_[half] * scale - shift[half]);
    }
    float added[2][2] = {};
    CADENZA_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      CADENZA_UNROLL
      for (int i = 0; i < 4; ++i) {
        float& score = scores[tile][i];
        score = thread_.exp2(kHuge ? (score - from[i / 2]) * scale
                                   : thread_.fma(score, scale, -shift[i / 2]));
        added[i / 2][i % 2] += score;
      }
    }
    CADENZA_UNROLL
    for (int half = 0; half < 2; ++half) {
      row_sum_[half] = row_sum_[half] * decay[half] + (added[half][0] + added[half][1]);
    }
  }

  CADENZA_DEVICE void rescale_o(const float (&decay)[2]) {
    CADENZA_UNROLL
    for (int tile = 0; tile < kDim / 8; ++tile) {
      CADENZA_UNROLL
      for (int i = 0; i < 4; ++i) out_[tile][i] *= decay[i / 2];
    }
  }

  /// With what an earlier call left in memory.
  CADENZA_DEVICE void merge(const Unit& unit) {
    const Queries& buffer = problem_.queries[unit.buffer];
    const auto out = head_rows<kDim>(buffer.out, buffer, unit.begin, unit.head_begin);
    const auto lse = head_rows<1>(buffer.lse, buffer, unit.begin, unit.head_begin);
    float before[2];
    CADENZA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const bool inside = row(half) < unit.end - unit.begin;
      before[half] = inside ? lse.data[row(half) * lse.stride] : -mma::kInfinity;
    }
    thread_.warp_barrier();  // all lanes of a row have read its lse
    CADENZA_UNROLL
    for (int half = 0; half < 2; ++half) {
      float total = row_sum_[half];
      total += thread_.exchanged(total, 1);
      total += thread_.exchanged(total, 2);
      if (row(half) >= unit.end - unit.begin || mma::saw_nothing(row_max_[half], total)) continue;
      const mma::RowMerge merge =
          mma::merge_row(thread_, row_max_[half] * problem_.scale, total, before[half]);
      float* to = out.data + row(half) * out.stride + sum_column(thread_.index());
      mma::update_row<kDim / 8>(to, [&](float old, int tile, int i) {
        return merge.merged(old, out_[tile][2 * half + i]);
      });
      if (thread_.index() % 4 == 0) lse.data[row(half) * lse.stride] = merge.lse;
    }
  }

  float row_max_[2];  ///< largest score so far, not scaled
  float row_sum_[2];  ///< this thread's part of the sum of e^((score - row_max) * scale)
  float out_[kDim / 8][4];
};

}  // namespace cadenza::kernels::sm90
