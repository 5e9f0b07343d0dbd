// SPDX-License-Identifier: Apache-2.0
// Forward pass on tensor cores: a block owns 128 queries of one head and walks over the keys that
// they see; a warp holds 32 of the queries, their maximum, sum and O in registers
// (FlashAttention-2, algorithm 1, and its shape for sm_80). Keys and values of the next tile are
// copied while this one is computed.
#pragma once

#include <cmath>

#include "../device/epilogue.hpp"
#include "../device/softmax.hpp"
#include "tiles.hpp"

namespace cadenza::kernels::mma {

template <int kDim>
struct ForwardShape {
  static constexpr int kRows = 128;  ///< queries of a unit
  static constexpr int kThreads = kRows / kWarpRows * 32;
  static constexpr int kBlocks = kDim > 32 ? 2 : 3;  ///< per multiprocessor, limited by registers
  static constexpr int kTile = kDim > 96 ? 32 : 64;  ///< keys at once: two blocks fit on sm_80
  static constexpr int kQueries = 0;
  CADENZA_DEVICE static constexpr int keys(int stage) { return (kRows + 2 * stage * kTile) * kDim; }
  CADENZA_DEVICE static constexpr int values(int stage) { return keys(stage) + kTile * kDim; }
  static constexpr int kWalk = (kRows + 4 * kTile) * kDim;
  static constexpr int kBytes = (kWalk + kWalkBits) * static_cast<int>(sizeof(Bits));
};

/// @tparam Tiles  KeyTile, or what a sparse pass has in its place
template <int kDim, typename Thread, template <int, int> typename Tiles = KeyTile>
class Forward : public PassOverQueries<kDim, ForwardShape<kDim>, Thread,
                                       Tiles<kDim, ForwardShape<kDim>::kTile>> {
  using Shape = ForwardShape<kDim>;
  using Tile = Tiles<kDim, Shape::kTile>;
  using Base = PassOverQueries<kDim, Shape, Thread, Tile>;
  using Scores = Sums<Shape::kTile>;
  using Base::thread_, Base::problem_, Base::unit_, Base::shared_;
  using Base::warp_row, Base::row;

 public:
  using Base::Base;

  CADENZA_DEVICE void run() {
    clear_state();
    this->for_each_tile(
        [this](const Rotation& rotation) { this->copy_rows(rotation.rotated, Shape::kQueries); },
        [](const Rotation&) {},
        [this](const Tile& tile, const Bits* keys, const Bits* values) {
          attend(tile, keys, values);
        });
    store_state();
  }

 private:
  CADENZA_DEVICE void clear_state() {
    clear(out_);
    CADENZA_UNROLL
    for (int block = 0; block < 2; ++block) {
      CADENZA_UNROLL
      for (int half = 0; half < 2; ++half) {
        row_max_[block][half] = -kInfinity;
        row_sum_[block][half] = 0;
      }
    }
  }

  CADENZA_DEVICE void attend(const Tile& tile, const Bits* keys, const Bits* values) {
    if (tile.sees_none(warp_row(), kWarpRows)) return;
    Scores scores;
    clear(scores);
    add_product_of_rows<kDim>(thread_, shared_ + Shape::kQueries, warp_row(), keys, 0, scores);
    online_softmax(tile, scores);
    add_product_of_sums<kDim>(thread_, scores, values, 0, out_);
  }

  /// Turns scores into probabilities. Earlier sums decay by the growth of the maximum; if no row of
  /// the warp has a new maximum, which soon is the rule, they stay unchanged.
  CADENZA_DEVICE void online_softmax(const Tile& tile, Scores& scores) {
    constexpr auto kExponent = Exponent::difference_first;
    const float scale = problem_.scale * kLog2e;
    const bool all = tile.sees_all(warp_row(), kWarpRows);
    if (!all) {
      this->apply_mask([&](int query) { return tile.seen(query); }, -kInfinity, scores);
    }
    float from[2][2];
    float decay[2][2];
    bool grows = false;
    CADENZA_UNROLL
    for (int block = 0; block < 2; ++block) {
      float row_max[2];
      CADENZA_UNROLL
      for (int half = 0; half < 2; ++half) {
        const bool sees = all || tile.sees_some(row(block, half));
        const float before = row_max_[block][half];
        row_max[half] = sees ? fmaxf(before, kLeast) : before;
      }
      raise_row_max(thread_, scores[block], row_max);
      CADENZA_UNROLL
      for (int half = 0; half < 2; ++half) {
        float& before = row_max_[block][half];
        from[block][half] = subtracted(row_max[half]);
        decay[block][half] = power<kExponent>(thread_, before, from[block][half], scale);
        grows = grows || row_max[half] != before;
        before = row_max[half];
      }
    }
    if (thread_.any(grows)) {
      CADENZA_UNROLL
      for (int block = 0; block < 2; ++block) {
        CADENZA_UNROLL
        for (int half = 0; half < 2; ++half) row_sum_[block][half] *= decay[block][half];
        rescale_o(decay[block], out_[block]);
      }
    }
    CADENZA_UNROLL
    for (int block = 0; block < 2; ++block) {
      float added[2];
      exponentiate<kExponent, 1>(thread_, scale, from[block], scores[block], added);
      CADENZA_UNROLL
      for (int half = 0; half < 2; ++half) row_sum_[block][half] += added[half];
    }
  }

  CADENZA_DEVICE void store_state() {
    CADENZA_UNROLL
    for (int block = 0; block < 2; ++block) {
      merge_out(thread_, problem_, unit_, row(block), row_max_[block], row_sum_[block],
                out_[block]);
    }
  }

  float row_max_[2][2];  ///< largest score so far, not scaled
  float row_sum_[2][2];  ///< this lane's part of the sum of e^((score - row_max) * scale)
  Sums<kDim> out_;
};

}  // namespace cadenza::kernels::mma
