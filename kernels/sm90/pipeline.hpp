// SPDX-License-Identifier: Apache-2.0
// Cooperation of the loading warp and the two computing warpgroups of a block.
//
// A unit's own rows (a *segment*: queries, or keys and values) stay in shared memory while tiles of
// the other side pass by: pairs of arrays, K and V or Q and dO. Segments and tiles have rings of
// slots. Every slot has a barrier `full`, on which the copy engine counts bytes, and a barrier
// `empty`, on which every computing warp arrives after its last read of the slot. The description
// of a tile (TileInfo) is stored beside it, so only the loading warp walks over tasks.
//
// A block stays for the whole launch: a counter hands out units, the longest first, and the loading
// warp already works on the next unit while the last one is computed.
#pragma once

#include "../device/fragment.hpp"
#include "../device/mask.hpp"
#include "layout.hpp"
#include "walks.hpp"

namespace cadenza::kernels::sm90 {

using Barrier = std::uint64_t;

/// Description of a tile for the computing warpgroups.
struct TileInfo {
  Visible visible;
  int unit = 0;      ///< -1: no more tiles
  int rotation = 0;  ///< rotation of the segment's queries
  bool begins_segment = false;
  bool ends_segment = false;
  bool ends_unit = false;  ///< for units of queries
  bool flushes = false;    ///< add sums of keys to memory after it
};

/// Layout of a pass' shared memory. A segment has kSegmentArrays tiles of kUnitRows rows; a slot of
/// tiles has two of kRows rows, and kNumbers numbers.
template <int kDim, int kSegmentArrays, int kSegments, int kRows, int kStages, int kNumbers>
struct SharedLayout {
  static constexpr int kHeadDim = kDim;
  static constexpr int kTileRows = kRows;
  static constexpr int kSegmentTile = tile_bytes(kUnitRows, kDim);
  static constexpr int kTile = tile_bytes(kRows, kDim);
  static constexpr int kArrays = kSegmentArrays;
  static constexpr int kSegmentSlots = kSegments;
  static constexpr int kTileSlots = kStages;
  static constexpr int kNumbersOfTile = kNumbers;

  CADENZA_DEVICE static constexpr int segment(int slot, int array) {
    return (slot * kSegmentArrays + array) * kSegmentTile;
  }
  CADENZA_DEVICE static constexpr int tile(int slot, int array) {
    return kSegments * kSegmentArrays * kSegmentTile + (slot * 2 + array) * kTile;
  }
  CADENZA_DEVICE static constexpr int numbers(int slot) {
    return tile(kStages, 0) + slot * kNumbers * static_cast<int>(sizeof(float));
  }
  CADENZA_DEVICE static constexpr int info(int slot) {
    return numbers(kStages) + slot * static_cast<int>(sizeof(TileInfo));
  }
  CADENZA_DEVICE static constexpr int barrier(int which) {
    return (info(kStages) + 7) / 8 * 8 + which * static_cast<int>(sizeof(Barrier));
  }
  CADENZA_DEVICE static constexpr int segment_full(int slot) { return barrier(slot); }
  CADENZA_DEVICE static constexpr int segment_empty(int slot) { return barrier(kSegments + slot); }
  CADENZA_DEVICE static constexpr int full(int slot, int array) {
    return barrier(2 * kSegments + 2 * slot + array);
  }
  CADENZA_DEVICE static constexpr int empty(int slot, int array) {
    return barrier(2 * kSegments + 2 * (kStages + slot) + array);
  }
  static constexpr int kBytes = barrier(2 * kSegments + 4 * kStages);
};

/// Position in a ring of slots used in turn: the nth use of a slot has parity n % 2.
template <int kSlots>
class Ring {
 public:
  CADENZA_DEVICE int slot() const { return slot_; }
  CADENZA_DEVICE int parity() const { return parity_; }
  CADENZA_DEVICE void advance() {
    if (++slot_ < kSlots) return;
    slot_ = 0;
    parity_ ^= 1;
  }

 private:
  int slot_ = 0;
  int parity_ = 0;
};

/// A thread's view of its block.
template <typename Layout, typename Thread>
class Block {
 public:
  CADENZA_DEVICE Block(const Thread& thread, const Problem& problem, unsigned char* shared)
      : thread_(thread), problem_(problem), shared_(shared) {}

 protected:
  CADENZA_DEVICE int lane() const { return thread_.index() % 32; }
  CADENZA_DEVICE Barrier* barrier(int at) const { return reinterpret_cast<Barrier*>(shared_ + at); }
  CADENZA_DEVICE TileInfo& info(int slot) const {
    return *reinterpret_cast<TileInfo*>(shared_ + Layout::info(slot));
  }
  CADENZA_DEVICE float* numbers(int slot) const {
    return reinterpret_cast<float*>(shared_ + Layout::numbers(slot));
  }

  const Thread& thread_;
  const Problem& problem_;
  unsigned char* shared_;
};

/// Initialises all barriers, by one thread, before the block splits into its roles.
template <typename Layout, typename Thread>
CADENZA_DEVICE void initialize_barriers(const Thread& thread, unsigned char* shared) {
  constexpr int kReaders = kConsumers * kWarpgroup / 32;
  const auto at = [&](int place) { return reinterpret_cast<Barrier*>(shared + place); };
  if (thread.index() == 0) {
    for (int slot = 0; slot < Layout::kSegmentSlots; ++slot) {
      thread.initialize(at(Layout::segment_full(slot)), 1);
      thread.initialize(at(Layout::segment_empty(slot)), kReaders);
    }
    for (int slot = 0; slot < Layout::kTileSlots; ++slot) {
      // If tiles have numbers, every lane of the loading warp arrives for its own.
      thread.initialize(at(Layout::full(slot, 0)), Layout::kNumbersOfTile > 0 ? 1 + 32 : 1);
      thread.initialize(at(Layout::full(slot, 1)), 1);
      thread.initialize(at(Layout::empty(slot, 0)), kReaders);
      thread.initialize(at(Layout::empty(slot, 1)), kReaders);
    }
    thread.publish_barriers();
  }
  thread.block_barrier();
}

/// The loading warp: all lanes walk, the first one loads.
template <typename Layout, typename Thread>
class Loader : public Block<Layout, Thread> {
 protected:
  using Base = Block<Layout, Thread>;
  using Base::Base, Base::barrier, Base::info, Base::lane, Base::problem_, Base::shared_,
      Base::thread_;

  /// Calls load(unit) for every unit that this block takes, then tells the computing warpgroups
  /// that there are no more.
  template <typename Load>
  CADENZA_DEVICE void for_each_unit(const Load& load) {
    for (int unit = thread_.take(problem_.next_unit); unit < problem_.unit_count;
         unit = thread_.take(problem_.next_unit)) {
      load(unit);
    }
    end();
  }

  /// Copies a tile of kRows rows from `row` on.
  template <int kRows>
  CADENZA_DEVICE void copy(int to, const TensorMap* map, Barrier* full, int head, int row) {
    CADENZA_UNROLL
    for (int column = 0; column < Layout::kHeadDim; column += kPanel) {
      thread_.copy_panel(shared_ + to + column / kPanel * panel_bytes(kRows), map, full, column,
                         head, row);
    }
  }

  /// Calls copy_array(array, to, full) for every array of the next segment, once its slot is empty.
  template <typename CopyArray>
  CADENZA_DEVICE void load_segment(const CopyArray& copy_array) {
    const int slot = segments_.slot();
    wait_empty(Layout::segment_empty(slot), segments_.parity());
    if (lane() == 0) {
      Barrier* full = barrier(Layout::segment_full(slot));
      thread_.arrive_expecting(full, Layout::kArrays * Layout::kSegmentTile);
      for (int array = 0; array < Layout::kArrays; ++array) {
        copy_array(array, Layout::segment(slot, array), full);
      }
    }
    segments_.advance();
  }

  /// Calls describe(info), and copy_array(array, to, full) for the two arrays of the next tile. All
  /// lanes call copy_numbers(slot, full).
  template <typename Describe, typename CopyArray, typename CopyNumbers>
  CADENZA_DEVICE void load_tile(const Describe& describe, const CopyArray& copy_array,
                                const CopyNumbers& copy_numbers) {
    const int slot = tiles_.slot();
    CADENZA_UNROLL
    for (int array = 0; array < 2; ++array) {
      wait_empty(Layout::empty(slot, array), tiles_.parity());
      Barrier* full = barrier(Layout::full(slot, array));
      if (lane() == 0) {
        if (array == 0) describe(info(slot));
        thread_.arrive_expecting(full, Layout::kTile);
        copy_array(array, Layout::tile(slot, array), full);
      }
      if (array == 0) copy_numbers(slot, full);
    }
    tiles_.advance();
  }

 private:
  CADENZA_DEVICE void end() {
    const int slot = tiles_.slot();
    wait_empty(Layout::empty(slot, 0), tiles_.parity());
    if (lane() == 0) {
      info(slot).unit = -1;
      thread_.arrive(barrier(Layout::full(slot, 0)));
    }
    if (Layout::kNumbersOfTile > 0) thread_.arrive_when_copied(barrier(Layout::full(slot, 0)));
  }

  /// Waits for an empty slot: its nth use waits for the (n - 1)th to end. A late lane could mistake
  /// the end of the following use for it, so none continues before all have seen it.
  CADENZA_DEVICE void wait_empty(int empty, int parity) {
    thread_.wait(barrier(empty), parity ^ 1);
    thread_.warp_barrier();
  }

  Ring<Layout::kSegmentSlots> segments_;
  Ring<Layout::kTileSlots> tiles_;
};

/// A thread of a computing warpgroup.
template <typename Layout, typename Thread>
class Consumer : public Block<Layout, Thread> {
 protected:
  using Base = Block<Layout, Thread>;
  using Base::Base, Base::barrier, Base::info, Base::lane, Base::problem_, Base::shared_,
      Base::thread_;

  CADENZA_DEVICE int group() const { return thread_.index() / kWarpgroup - 1; }
  /// First row in the unit of this warpgroup and, in a fragment, of this thread; half 1 is eight
  /// rows later.
  CADENZA_DEVICE int first_row() const { return group() * kWarpgroupRows; }
  CADENZA_DEVICE int row(int half = 0) const {
    return first_row() + sum_row(thread_.index()) + 8 * half;
  }

  /// Waits for the next tile's first array. Its description may be read until that array is
  /// released.
  CADENZA_DEVICE const TileInfo& next_tile() {
    thread_.wait(barrier(Layout::full(tiles_.slot(), 0)), tiles_.parity());
    return info(tiles_.slot());
  }
  CADENZA_DEVICE void wait_second() {
    thread_.wait(barrier(Layout::full(tiles_.slot(), 1)), tiles_.parity());
  }
  CADENZA_DEVICE void wait_segment() {
    thread_.wait(barrier(Layout::segment_full(segments_.slot())), segments_.parity());
  }
  CADENZA_DEVICE void release_segment() {
    release(Layout::segment_empty(segments_.slot()));
    segments_.advance();
  }
  CADENZA_DEVICE void release(int empty) {
    thread_.warp_barrier();  // all lanes have finished reading
    if (lane() == 0) thread_.arrive(barrier(empty));
  }

  /// Returns addresses as products take them.
  CADENZA_DEVICE unsigned segment(int array) const {
    return thread_.shared_address(shared_ + Layout::segment(segments_.slot(), array));
  }
  CADENZA_DEVICE unsigned tile(int slot, int array) const {
    return thread_.shared_address(shared_ + Layout::tile(slot, array));
  }

  Ring<Layout::kTileSlots> tiles_;  ///< ring position of next_tile's slot

 private:
  Ring<Layout::kSegmentSlots> segments_;
};

/// Computes sums [64, 8 kFragments] = rows [left_row, +64) of a unit's tile times rows of `right`,
/// over kDim columns.
template <int kDim, int kFragments, typename Thread>
CADENZA_DEVICE void multiply_rows(const Thread& thread, unsigned left, int left_row, unsigned right,
                                  float (&sums)[kFragments][4]) {
  const std::uint64_t from_left = thread.uniform(rows_factor(left, left_row));
  const std::uint64_t from_right = thread.uniform(rows_factor(right, 0));
  CADENZA_UNROLL
  for (int depth = 0; depth < kDim; depth += kDepth) {
    thread.multiply(sums, advanced(from_left, depth_bytes(kUnitRows, depth)),
                    advanced(from_right, depth_bytes(kFragments * 8, depth)), depth > 0);
  }
}

/// Adds to sums [64, kDim]: left [64, 16 kSteps] times `right` [16 kSteps, kDim].
template <int kDim, int kSteps, typename Thread>
CADENZA_DEVICE void multiply_columns(const Thread& thread, const unsigned (&left)[kSteps][4],
                                     unsigned right, float (&sums)[kDim / 8][4]) {
  const std::uint64_t from = thread.uniform(columns_factor(right, kSteps * kDepth));
  CADENZA_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    thread.multiply(sums, left[step], advanced(from, step * kDepth * kRowBytes));
  }
}

}  // namespace cadenza::kernels::sm90
