// SPDX-License-Identifier: Apache-2.0
// Second of two backward passes on Hopper: a unit is 128 keys of one key-value head and sums dK and
// dV over the queries of all heads of its group that see them. Rows of all products are keys, so
// probabilities and their gradients can be left factors in registers without rearrangement.
#pragma once

#include "../device/epilogue.hpp"
#include "../device/softmax.hpp"
#include "pipeline.hpp"

namespace cadenza::kernels::sm90 {

/// The numbers of a tile are lse, then delta.
template <int kDim>
using KeyGradientLayout = SharedLayout<kDim, 2, 2, kQueries, 2, 2 * kQueries>;

template <int kDim, typename Thread>
class KeyGradientLoader : public Loader<KeyGradientLayout<kDim>, Thread> {
  using Base = Loader<KeyGradientLayout<kDim>, Thread>;
  using Base::lane, Base::problem_, Base::thread_;

 public:
  using Base::Base;

  CADENZA_DEVICE void run() {
    this->for_each_unit([this](int unit) { load_unit(unit); });
  }

 private:
  CADENZA_DEVICE void load_unit(int unit) {
    const Unit& of = problem_.units[unit];
    int last_entry = -1;
    int tiles = 0;
    for (QueryWalk walk(problem_, of); !walk.done();) {
      const int entry = walk.entry();
      const int row = walk.row();
      const int head = walk.head();
      walk.advance();
      const bool begins = last_entry < 0;
      if (begins) load_keys(of);
      ++tiles;
      this->load_tile(
          [&](TileInfo& info) {
            const Entry& task = problem_.entries[entry];
            info.visible = visible_in(task, task.q_begin + row, of.begin);
            info.unit = unit;
            info.begins_segment = begins;
            info.ends_segment = walk.done();
            info.flushes = walk.done() || tiles % (kQueriesPerFlush / kQueries) == 0;
          },
          [&](int array, int to, Barrier* full) {
            const TensorMap* map =
                problem_.entry_maps + entry * kEntryMaps + (array == 0 ? kEntryQ : kEntryDout);
            if (entry != last_entry) thread_.acquire(map);
            const Queries& buffer = problem_.queries[problem_.entries[entry].queries];
            this->template copy<kQueries>(to, map, full, head - buffer.first_head, row);
          },
          [&](int slot, Barrier* full) {
            copy_statistics(problem_.entries[entry], row, head, this->numbers(slot));
            thread_.arrive_when_copied(full);
          });
      last_entry = entry;
    }
  }

  CADENZA_DEVICE void load_keys(const Unit& of) {
    this->load_segment([&](int array, int to, Barrier* full) {
      const Keys& buffer = problem_.keys[of.buffer];
      const TensorMap* map =
          problem_.key_maps + of.buffer * kBufferMaps + (array == 0 ? kBufferK : kBufferV);
      thread_.acquire(map);
      this->template copy<kUnitRows>(to, map, full, of.kv_head - buffer.first_head,
                                     static_cast<int>(of.begin - buffer.begin));
    });
  }

  CADENZA_DEVICE void copy_statistics(const Entry& task, int row, int head, float* to) const {
    const Queries& buffer = problem_.queries[task.queries];
    const std::int64_t first =
        (task.q_begin + row - buffer.begin) * buffer.heads + head - buffer.first_head;
    CADENZA_ROLL
    for (int query = lane(); query < kQueries; query += 32) {
      const bool inside = task.q_begin + row + query < task.q_end;
      const std::int64_t at = first + (inside ? query * buffer.heads : 0);
      thread_.copy_number(to + query, buffer.lse + at, inside);
      thread_.copy_number(to + kQueries + query, buffer.delta + at, inside);
    }
  }
};

template <int kDim, typename Thread>
class KeyGradientConsumer : public Consumer<KeyGradientLayout<kDim>, Thread> {
  static constexpr int kFragments = kQueries / 8;
  using Layout = KeyGradientLayout<kDim>;
  using Base = Consumer<Layout, Thread>;
  using Base::first_row, Base::problem_, Base::row, Base::thread_, Base::tiles_;

 public:
  using Base::Base;

  CADENZA_DEVICE void run() {
    while (this->next_tile().unit >= 0) {
      if (tile_info().begins_segment) {
        clear(dk_);
        clear(dv_);
        this->wait_segment();
      }
      this->wait_second();
      if (!tile_info().visible.sees_none(0, kQueries, first_row(), kWarpgroupRows)) differentiate();
      const int unit = tile_info().unit;
      const bool ends = tile_info().ends_segment;
      const bool flushes = tile_info().flushes;
      this->release(Layout::empty(tiles_.slot(), 0));
      this->release(Layout::empty(tiles_.slot(), 1));
      tiles_.advance();
      if (ends) this->release_segment();
      if (!flushes) continue;
      add_key_gradients(thread_, problem_, key_gradient_rows<kDim>(problem_, problem_.units[unit]),
                        row(), 0, dk_, dv_);
      clear(dk_);
      clear(dv_);
    }
  }

 private:
  CADENZA_DEVICE const TileInfo& tile_info() const { return this->info(tiles_.slot()); }

  CADENZA_DEVICE void differentiate() {
    const unsigned queries = this->tile(tiles_.slot(), 0);
    const unsigned dout = this->tile(tiles_.slot(), 1);
    float scores[kFragments][4];
    float dscores[kFragments][4];
    unsigned packed[kFragments / 2][4];
    unsigned dpacked[kFragments / 2][4];
    thread_.begin_products();
    multiply_rows<kDim>(thread_, this->segment(0), first_row(), queries, scores);
    thread_.commit_products();
    multiply_rows<kDim>(thread_, this->segment(1), first_row(), dout, dscores);
    thread_.commit_products();
    const bool all = tile_info().visible.sees_all(0, kQueries, first_row(), kWarpgroupRows);
    thread_.template wait_products<1>(scores);
    if (!all) {
      apply_mask(
          thread_, [&](int half) { return queries_of(tile_info().visible, row(half)); }, -kInfinity,
          scores);
    }
    const float* numbers = this->numbers(tiles_.slot());
    recompute_probabilities(
        thread_, problem_.scale * kLog2e,
        [&](int, int query) { return usable_lse(numbers[query]); }, scores);
    pack(thread_, scores, packed);
    thread_.pin(dv_);
    thread_.begin_products();
    multiply_columns<kDim>(thread_, packed, dout, dv_);
    thread_.commit_products();
    thread_.template wait_products<1>(dscores);
    const auto delta = [&](int, int query) { return numbers[kQueries + query]; };
    subtract_delta(thread_, scores, delta, dscores);
    if (!all) clear_unseen(scores, dscores);
    pack(thread_, dscores, dpacked);
    thread_.pin(dk_);
    thread_.begin_products();
    multiply_columns<kDim>(thread_, dpacked, queries, dk_);
    thread_.commit_products();
    thread_.template wait_products<0>(dv_);
    thread_.pin(dk_);
  }

  float dk_[kDim / 8][4];
  float dv_[kDim / 8][4];
};

}  // namespace cadenza::kernels::sm90
