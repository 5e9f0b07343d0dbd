// SPDX-License-Identifier: Apache-2.0
// Forward pass on tensor cores: a block owns 64 queries of one head and walks over the keys that
// they see; a warp has 16 of the queries, their maximum, sum and O in registers (FlashAttention-2,
// algorithm 1). Keys and values of the next tile arrive while this one is computed.
#pragma once

#include "tiles.hpp"

namespace cadenza::kernels::mma {

template <int kDim>
struct ForwardShared {
  static constexpr int kTile = kRows * kDim;
  static constexpr int kQueries = 0;
  CADENZA_MMA static constexpr int keys(int stage) { return (1 + 2 * stage) * kTile; }
  CADENZA_MMA static constexpr int values(int stage) { return (2 + 2 * stage) * kTile; }
  static constexpr int kBytes = 5 * kTile * static_cast<int>(sizeof(Bits));
};

template <int kDim, typename Thread>
class Forward : public PassOverQueries<kDim, ForwardShared<kDim>, Thread> {
  using Base = PassOverQueries<kDim, ForwardShared<kDim>, Thread>;
  using Base::lane, Base::warp_row, Base::row, Base::rows;
  using Base::thread_, Base::problem_, Base::unit_, Base::shared_;

 public:
  using Base::Base;

  CADENZA_MMA void run() {
    load_state();
    const KeyWalk walk(problem_, unit_);
    if (walk.done()) return;
    this->for_each_tile(
        walk,
        [this](const Rotation& rotation) {
          this->copy_rows(rotation.rotated, ForwardShared<kDim>::kQueries);
        },
        [this](const Visible& visible, const Bits* keys, const Bits* values) {
          attend(visible, keys, values);
        });
    store_state();
  }

 private:
  /// What an earlier call or task left: (O, lse) is a sum of one term e^lse.
  CADENZA_MMA void load_state() {
    const Queries& buffer = problem_.queries[unit_.buffer];
    const HeadRows<float> out = head_rows<kDim>(buffer.out, buffer, unit_.begin, unit_.head_begin);
    const HeadRows<float> lse = head_rows<1>(buffer.lse, buffer, unit_.begin, unit_.head_begin);
    CADENZA_MMA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const bool inside = row(half) < rows();
      peak_[half] = inside ? lse.data[row(half) * lse.stride] : -kInfinity;
      const bool empty = peak_[half] == -kInfinity;
      sum_[half] = empty || lane() % 4 != 0 ? 0 : 1;  // four lanes have parts of it
      const float* from = out.data + row(half) * out.stride + sum_column(lane());
      CADENZA_MMA_UNROLL
      for (int tile = 0; tile < kDim / 8; ++tile) {
        out_[tile][2 * half] = empty ? 0 : from[tile * 8];
        out_[tile][2 * half + 1] = empty ? 0 : from[tile * 8 + 1];
      }
    }
  }

  CADENZA_MMA void attend(const Visible& visible, const Bits* keys, const Bits* values) {
    if (visible.sees_none(warp_row(), 16, 0, kRows)) return;
    float scores[kRows / 8][4];
    clear(scores);
    add_product_of_rows<kDim>(thread_, shared_ + ForwardShared<kDim>::kQueries, warp_row(), keys, 0,
                              scores);
    if (!visible.sees_all(warp_row(), 16, 0, kRows)) hide(visible, scores);
    CADENZA_MMA_UNROLL
    for (int half = 0; half < 2; ++half) soften(half, scores);
    add_product_of_sums<kDim>(thread_, scores, values, 0, out_);
  }

  CADENZA_MMA void hide(const Visible& visible, float (&scores)[kRows / 8][4]) const {
    CADENZA_MMA_UNROLL
    for (int tile = 0; tile < kRows / 8; ++tile) {
      CADENZA_MMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int key = tile * 8 + sum_column(lane()) + i % 2;
        if (!visible.sees(row(i / 2), key)) scores[tile][i] = -kInfinity;
      }
    }
  }

  /// Scores of one row to probabilities; what was summed before decays by the maximum's growth. A
  /// row that sees nothing keeps its state.
  CADENZA_MMA void soften(int half, float (&scores)[kRows / 8][4]) {
    float highest = peak_[half];
    CADENZA_MMA_UNROLL
    for (int tile = 0; tile < kRows / 8; ++tile) {
      CADENZA_MMA_UNROLL
      for (int i = 0; i < 2; ++i) {
        float& score = scores[tile][2 * half + i];
        score *= problem_.scale;
        highest = score > highest ? score : highest;
      }
    }
    CADENZA_MMA_UNROLL
    for (int bits = 1; bits < 4; bits *= 2) {
      const float other = thread_.exchanged(highest, bits);
      highest = other > highest ? other : highest;
    }
    const float shift = highest == -kInfinity ? 0 : highest;
    const float decay = thread_.exp2((peak_[half] - shift) * kLog2e);
    float added = 0;
    CADENZA_MMA_UNROLL
    for (int tile = 0; tile < kRows / 8; ++tile) {
      CADENZA_MMA_UNROLL
      for (int i = 0; i < 2; ++i) {
        float& score = scores[tile][2 * half + i];
        score = thread_.exp2((score - shift) * kLog2e);
        added += score;
      }
    }
    CADENZA_MMA_UNROLL
    for (int tile = 0; tile < kDim / 8; ++tile) {
      out_[tile][2 * half] *= decay;
      out_[tile][2 * half + 1] *= decay;
    }
    peak_[half] = highest;
    sum_[half] = sum_[half] * decay + added;
  }

  CADENZA_MMA void store_state() {
    const Queries& buffer = problem_.queries[unit_.buffer];
    const HeadRows<float> out = head_rows<kDim>(buffer.out, buffer, unit_.begin, unit_.head_begin);
    const HeadRows<float> lse = head_rows<1>(buffer.lse, buffer, unit_.begin, unit_.head_begin);
    CADENZA_MMA_UNROLL
    for (int half = 0; half < 2; ++half) {
      float total = sum_[half];
      total += thread_.exchanged(total, 1);
      total += thread_.exchanged(total, 2);
      if (row(half) >= rows() || total == 0) continue;
      const float weight = 1 / total;
      float* to = out.data + row(half) * out.stride + sum_column(lane());
      CADENZA_MMA_UNROLL
      for (int tile = 0; tile < kDim / 8; ++tile) {
        to[tile * 8] = out_[tile][2 * half] * weight;
        to[tile * 8 + 1] = out_[tile][2 * half + 1] * weight;
      }
      if (lane() % 4 == 0) lse.data[row(half) * lse.stride] = peak_[half] + thread_.log(total);
    }
  }

  float peak_[2];  ///< largest logit so far
  float sum_[2];   ///< this lane's part of the sum of e^(logit - peak)
  float out_[kDim / 8][4];
};

}  // namespace cadenza::kernels::mma
