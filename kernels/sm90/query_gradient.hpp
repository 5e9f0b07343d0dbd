// SPDX-License-Identifier: Apache-2.0
// First of two backward passes on Hopper: a unit is 128 queries of one head and sums dQ. The second
// one (key_gradient.hpp) sums dK and dV; both compute the logits, seven products in all, so that no
// two blocks write the same element and no sum needs atomics. Probabilities come from the merged
// lse, so gradients of tasks simply add (FlashAttention-2, algorithm 2).
#pragma once

#include "../device/epilogue.hpp"
#include "../device/softmax.hpp"
#include "query_units.hpp"

namespace cadenza::kernels::sm90 {

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
        load_statistics(problem_, unit, row(), lse_, delta_);
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
      add_query_gradient(thread_, problem_, unit, problem_.rotations[tile.rotation], row(), dq_);
    }
  }

 private:
  static constexpr int kFragments = kKeys / 8;

  CADENZA_DEVICE void differentiate(const Visible& visible) {
    const unsigned keys = this->tile(tiles_.slot(), 0);
    const unsigned values = this->tile(tiles_.slot(), 1);
    float scores[kFragments][4];
    float dscores[kFragments][4];
    unsigned packed[kFragments / 2][4];
    thread_.begin_products();
    multiply_rows<kDim>(thread_, this->segment(0), first_row(), keys, scores);
    thread_.commit_products();
    multiply_rows<kDim>(thread_, this->segment(1), first_row(), values, dscores);
    thread_.commit_products();
    thread_.template wait_products<1>(scores);
    const bool all = visible.sees_all(first_row(), kWarpgroupRows, 0, kKeys);
    if (!all) {
      apply_mask(
          thread_, [&](int half) { return keys_of(visible, row(half)); }, -kInfinity, scores);
    }
    recompute_probabilities(
        thread_, problem_.scale * kLog2e, [&](int half, int) { return lse_[half]; }, scores);
    thread_.end_basic_block(scores[0][0]);
    thread_.template wait_products<0>(dscores);
    const auto delta = [&](int half, int) { return delta_[half]; };
    subtract_delta(thread_, scores, delta, dscores);
    if (!all) clear_unseen(scores, dscores);
    pack(thread_, dscores, packed);
    thread_.pin(dq_);
    thread_.begin_products();
    multiply_columns<kDim>(thread_, packed, keys, dq_);
    thread_.commit_products();
    thread_.template wait_products<0>(dq_);
  }

  float lse_[2];
  float delta_[2];
  float dq_[kDim / 8][4];  ///< of the rotated queries
};

}  // namespace cadenza::kernels::sm90
