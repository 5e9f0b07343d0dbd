// SPDX-License-Identifier: Apache-2.0
// Forward pass on tensor cores: a block owns 128 queries of one head and walks over the keys that
// they see; a warp has 32 of the queries, their maximum, sum and O in registers (FlashAttention-2,
// algorithm 1, and its shape for sm_80). Keys and values of the next tile arrive while this one is
// computed.
#pragma once

#include <cmath>

#include "tiles.hpp"

namespace cadenza::kernels::mma {

template <int kDim>
struct ForwardShape {
  static constexpr int kRows = 128;  ///< of a unit: queries
  static constexpr int kThreads = kRows / kWarpRows * 32;
  static constexpr int kBlocks = kDim > 32 ? 2 : 3;  ///< of a multiprocessor, by registers
  static constexpr int kTile = kDim > 96 ? 32 : 64;  ///< keys at once: two blocks fit on sm_80
  static constexpr int kQueries = 0;
  CADENZA_DEVICE static constexpr int keys(int stage) { return (kRows + 2 * stage * kTile) * kDim; }
  CADENZA_DEVICE static constexpr int values(int stage) { return keys(stage) + kTile * kDim; }
  static constexpr int kWalk = (kRows + 4 * kTile) * kDim;
  static constexpr int kBytes = (kWalk + kWalkBits) * static_cast<int>(sizeof(Bits));
};

template <int kDim, typename Thread>
class Forward : public PassOverQueries<kDim, ForwardShape<kDim>, Thread> {
  using Shape = ForwardShape<kDim>;
  using Base = PassOverQueries<kDim, Shape, Thread>;
  using Scores = Sums<Shape::kTile>;
  using Base::lane, Base::warp_row, Base::row, Base::rows;
  using Base::thread_, Base::problem_, Base::unit_, Base::shared_;

 public:
  using Base::Base;

  CADENZA_DEVICE void run() {
    clear_state();
    this->for_each_tile(
        [this](const Rotation& rotation) { this->copy_rows(rotation.rotated, Shape::kQueries); },
        [](const Rotation&) {},
        [this](const Visible& visible, const Bits* keys, const Bits* values) {
          attend(visible, keys, values);
        });
    store_state();
  }

 private:
  CADENZA_DEVICE void clear_state() {
    clear(out_);
    CADENZA_UNROLL
    for (int r = 0; r < 4; ++r) {
      row_max_[r] = -kInfinity;
      row_sum_[r] = 0;
    }
  }

  CADENZA_DEVICE void attend(const Visible& visible, const Bits* keys, const Bits* values) {
    if (visible.sees_none(warp_row(), kWarpRows, 0, Shape::kTile)) return;
    Scores scores;
    clear(scores);
    add_product_of_rows<kDim>(thread_, shared_ + Shape::kQueries, warp_row(), keys, 0, scores);
    const bool all = visible.sees_all(warp_row(), kWarpRows, 0, Shape::kTile);
    if (!all) {
      this->apply_mask(scores, -kInfinity,
                       [&](int query, int key) { return visible.sees(query, key); });
    }
    CADENZA_UNROLL
    for (int r = 0; r < 4; ++r) {
      if (all || visible.sees_some(row(r), Shape::kTile)) row_max_[r] = fmaxf(row_max_[r], kLeast);
    }
    online_softmax(scores);
    add_product_of_sums<kDim>(thread_, scores, values, 0, out_);
  }

  /// Scores to probabilities. What was summed before decays by the maximum's growth; where no row
  /// of the warp has a new maximum, and that is soon the rule, it stays as it is.
  CADENZA_DEVICE void online_softmax(Scores& scores) {
    float decay[4];
    bool grows = false;
    CADENZA_UNROLL
    for (int r = 0; r < 4; ++r) {
      const float before = row_max_[r];
      row_max_[r] = highest(r, scores);
      decay[r] = thread_.exp2((before - shift(r)) * (problem_.scale * kLog2e));
      grows = grows || row_max_[r] != before;
    }
    if (thread_.any(grows)) {
      CADENZA_UNROLL
      for (int r = 0; r < 4; ++r) scale_state(r, decay[r]);
    }
    CADENZA_UNROLL
    for (int r = 0; r < 4; ++r) row_sum_[r] += to_probabilities(r, scores);
  }

  /// The row's largest score so far, past those that are NaN: these show in the sum.
  CADENZA_DEVICE float highest(int r, const Scores& scores) const {
    float score = -kInfinity;
    CADENZA_UNROLL
    for (int tile = 0; tile < Shape::kTile / 8; ++tile) {
      CADENZA_UNROLL
      for (int i = 0; i < 2; ++i) score = fmaxf(scores[r / 2][tile][r % 2 * 2 + i], score);
    }
    score = fmaxf(thread_.exchanged(score, 1), score);
    score = fmaxf(thread_.exchanged(score, 2), score);
    return fmaxf(score, row_max_[r]);
  }

  /// A row that saw nothing has no maximum: its probabilities are 0 by their scores.
  CADENZA_DEVICE float shift(int r) const { return row_max_[r] == -kInfinity ? 0 : row_max_[r]; }

  CADENZA_DEVICE void scale_state(int r, float by) {
    row_sum_[r] *= by;
    CADENZA_UNROLL
    for (int tile = 0; tile < kDim / 8; ++tile) {
      CADENZA_UNROLL
      for (int i = 0; i < 2; ++i) out_[r / 2][tile][r % 2 * 2 + i] *= by;
    }
  }

  /// Of this lane's scores of a row; returns their sum. The difference comes first: it is 0 for the
  /// largest score, however large scores are.
  CADENZA_DEVICE float to_probabilities(int r, Scores& scores) const {
    const float scale = problem_.scale * kLog2e;
    const float subtracted = shift(r);
    float added = 0;
    CADENZA_UNROLL
    for (int tile = 0; tile < Shape::kTile / 8; ++tile) {
      CADENZA_UNROLL
      for (int i = 0; i < 2; ++i) {
        float& score = scores[r / 2][tile][r % 2 * 2 + i];
        score = thread_.exp2((score - subtracted) * scale);
        added += score;
      }
    }
    return added;
  }

  /// Merged with what an earlier call left in memory. One lane of a row reads its lse and writes
  /// it.
  CADENZA_DEVICE void store_state() {
    const Queries& buffer = problem_.queries[unit_.buffer];
    const HeadRows<float> out = head_rows<kDim>(buffer.out, buffer, unit_.begin, unit_.head_begin);
    const HeadRows<float> lse = head_rows<1>(buffer.lse, buffer, unit_.begin, unit_.head_begin);
    CADENZA_UNROLL
    for (int r = 0; r < 4; ++r) {
      float total = row_sum_[r];
      total += thread_.exchanged(total, 1);
      total += thread_.exchanged(total, 2);
      const bool inside = row(r) < rows();
      const bool reads = inside && lane() % 4 == 0;
      float before = reads ? lse.data[row(r) * lse.stride] : 0;
      before += thread_.exchanged(before, 1);
      before += thread_.exchanged(before, 2);
      if (!inside || saw_nothing(row_max_[r], total)) continue;
      const RowMerge merge = merge_row(thread_, row_max_[r] * problem_.scale, total, before);
      float* to = out.data + row(r) * out.stride + sum_column(lane());
      update_row<kDim / 8>(to, [&](float old, int tile, int i) {
        return merge.merged(old, out_[r / 2][tile][r % 2 * 2 + i]);
      });
      if (reads) lse.data[row(r) * lse.stride] = merge.lse;
    }
  }

  float row_max_[4];  ///< largest score so far, not scaled
  float row_sum_[4];  ///< this lane's part of the sum of e^((score - row_max) * scale)
  Sums<kDim> out_;
};

}  // namespace cadenza::kernels::mma
