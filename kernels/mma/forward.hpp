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
class Forward {
 public:
  CADENZA_MMA Forward(const Thread& thread, const Problem& problem, const Unit& unit, Bits* shared)
      : thread_(thread), problem_(problem), unit_(unit), shared_(shared) {}

  CADENZA_MMA void run() {
    using Shared = ForwardShared<kDim>;
    load_state();
    KeyWalk now(problem_, unit_);
    if (now.done()) return;
    copy_keys<kDim>(thread_, problem_, unit_, now, shared_ + Shared::keys(0),
                    shared_ + Shared::values(0));
    int rotation = -1;
    for (int stage = 0; !now.done(); stage ^= 1) {
      if (now.entry().rotation != rotation) {
        rotation = now.entry().rotation;
        copy_queries(rotation);
      }
      thread_.commit();
      KeyWalk next = now;
      next.advance();
      if (!next.done()) {
        copy_keys<kDim>(thread_, problem_, unit_, next, shared_ + Shared::keys(stage ^ 1),
                        shared_ + Shared::values(stage ^ 1));
      }
      thread_.commit();
      thread_.template wait<1>();
      thread_.barrier();
      attend(visible_in(now.entry(), unit_.begin, now.key()), shared_ + Shared::keys(stage),
             shared_ + Shared::values(stage));
      thread_.barrier();  // all have read the stage that the next turn fills
      now = next;
    }
    store_state();
  }

 private:
  CADENZA_MMA int lane() const { return thread_.index() % 32; }
  CADENZA_MMA int warp_row() const { return thread_.index() / 32 * 16; }
  /// Row of the unit of this lane's first two sums (0) or last two (1).
  CADENZA_MMA int row(int half) const { return warp_row() + sum_row(lane()) + 8 * half; }
  CADENZA_MMA int rows() const { return static_cast<int>(unit_.end - unit_.begin); }

  CADENZA_MMA void copy_queries(int rotation) {
    const Queries& buffer = problem_.queries[unit_.buffer];
    const Bits* rotated = problem_.rotations[rotation].rotated;
    copy_tile<kDim, kRows>(thread_, head_rows<kDim>(rotated, buffer, unit_.begin, unit_.head_begin),
                           rows(), shared_ + ForwardShared<kDim>::kQueries);
  }

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

  const Thread& thread_;
  const Problem& problem_;
  const Unit& unit_;
  Bits* shared_;
  float peak_[2];  ///< largest logit so far
  float sum_[2];   ///< this lane's part of the sum of e^(logit - peak)
  float out_[kDim / 8][4];
};

}  // namespace cadenza::kernels::mma
