// SPDX-License-Identifier: Apache-2.0
// Forward pass on Hopper: a unit is 128 queries of one head, 64 for each computing warpgroup, which
// holds their maximum, sum and O in registers (FlashAttention-2, algorithm 1). The logits of the
// next tile are multiplied before the probabilities of this one, so that a warpgroup's exponentials
// overlap with products; and the two warpgroups take turns in issuing products, so that one
// computes exponentials while the other multiplies (FlashAttention-3, section 3).
#pragma once

#include <cmath>

#include "../device/epilogue.hpp"
#include "../device/softmax.hpp"
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
    if (group() == 1) end_turn();  // the other group has the first turn
    for (TileInfo tile = this->next_tile(); tile.unit >= 0; tile = this->next_tile()) {
      attend(tile);
      merge_out(thread_, problem_, problem_.units[tile.unit], row(), row_max_, row_sum_, out_);
    }
  }

 private:
  static constexpr int kFragments = kKeys / 8;

  // Turns of the warpgroups: barrier 1 + group is its own.
  CADENZA_DEVICE void begin_turn() { thread_.sync(1 + group(), kConsumers * kWarpgroup); }
  CADENZA_DEVICE void end_turn() { thread_.arrive(2 - group(), kConsumers * kWarpgroup); }

  /// Processes all tiles of a unit, beginning with its first one, which has arrived.
  CADENZA_DEVICE void attend(TileInfo tile) {
    clear(out_);
    row_max_[0] = row_max_[1] = -kInfinity;
    row_sum_[0] = row_sum_[1] = 0;
    float scores[kFragments][4];
    unsigned probabilities[kFragments / 2][4];
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
      rescale_o(decay, out_);
      pack(thread_, scores, probabilities);
    }
    begin_out(tiles_, probabilities);
    thread_.template wait_products<0>(out_);
    this->release(Layout::empty(tiles_.slot(), 1));
    tiles_.advance();
  }

  CADENZA_DEVICE void begin_scores(const TileInfo& tile, float (&scores)[kFragments][4]) {
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
                                const unsigned (&probabilities)[kFragments / 2][4]) {
    thread_.wait(this->barrier(Layout::full(at.slot(), 1)), at.parity());
    thread_.pin(out_);
    thread_.begin_products();
    multiply_columns<kDim>(thread_, probabilities, this->tile(at.slot(), 1), out_);
    thread_.commit_products();
  }

  /// Turns scores into probabilities. Earlier sums decay by the growth of a row's maximum. A row
  /// that sees no key keeps its state.
  CADENZA_DEVICE void online_softmax(const Visible& visible, float (&scores)[kFragments][4],
                                     float (&decay)[2]) {
    const bool all = visible.sees_all(first_row(), kWarpgroupRows, 0, kKeys);
    float row_max[2] = {fmaxf(row_max_[0], kLeast), fmaxf(row_max_[1], kLeast)};
    if (!all) {
      apply_mask(
          thread_, [&](int half) { return keys_of(visible, row(half)); }, -kInfinity, scores);
      CADENZA_UNROLL
      for (int half = 0; half < 2; ++half) {
        if (!visible.sees_some(row(half), kKeys)) row_max[half] = row_max_[half];
      }
    }
    raise_row_max(thread_, scores, row_max);
    const float from[2] = {subtracted(row_max[0]), subtracted(row_max[1])};
    const float scale = problem_.scale * kLog2e;
    if (fmaxf(fabsf(from[0]), fabsf(from[1])) * scale < kHugeLogit) {
      exponentiate_and_add<Exponent::fused>(scale, from, scores, decay);
    } else {
      exponentiate_and_add<Exponent::difference_first>(scale, from, scores, decay);
    }
    row_max_[0] = row_max[0];
    row_max_[1] = row_max[1];
  }

  /// Above this logit, in units of log2, a product's rounding error noticeably changes its power of
  /// 2.
  static constexpr float kHugeLogit = 1 << 20;

  template <Exponent kExponent>
  CADENZA_DEVICE void exponentiate_and_add(float scale, const float (&from)[2],
                                           float (&scores)[kFragments][4], float (&decay)[2]) {
    CADENZA_UNROLL
    for (int half = 0; half < 2; ++half) {
      decay[half] = power<kExponent>(thread_, row_max_[half], from[half], scale);
    }
    float added[2];
    exponentiate<kExponent, 2>(thread_, scale, from, scores, added);
    CADENZA_UNROLL
    for (int half = 0; half < 2; ++half) {
      row_sum_[half] = row_sum_[half] * decay[half] + added[half];
    }
  }

  float row_max_[2];  ///< largest score so far, not scaled
  float row_sum_[2];  ///< this thread's part of the sum of e^((score - row_max) * scale)
  float out_[kDim / 8][4];
};

}  // namespace cadenza::kernels::sm90
