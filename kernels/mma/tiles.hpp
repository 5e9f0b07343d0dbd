// SPDX-License-Identifier: Apache-2.0
// What the passes share: tiles from memory to shared memory, products of a warp, the mask, the walk
// over a unit's keys. `Thread` is DeviceThread or, on the host, EmulatedThread.
#pragma once

#include "layout.hpp"

namespace cadenza::kernels::mma {

inline constexpr float kInfinity = __builtin_huge_valf();
inline constexpr float kLog2e = 1.4426950408889634f;

CADENZA_MMA std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
CADENZA_MMA std::int64_t larger(std::int64_t a, std::int64_t b) {
  return a > b ? a : b;
}

/// Rows of one head in memory: element d of row r at data[r * stride + d].
template <typename Element>
struct HeadRows {
  Element* data = nullptr;
  std::int64_t stride = 0;
};

/// From `token` on, in an array [rows, heads, kDim] of the buffer.
template <int kDim, typename Element, typename Buffer>
CADENZA_MMA HeadRows<Element> head_rows(Element* array, const Buffer& buffer, std::int64_t token,
                                        int head) {
  const std::int64_t row = (token - buffer.begin) * buffer.heads + head - buffer.first_head;
  return {array + row * kDim, static_cast<std::int64_t>(buffer.heads) * kDim};
}

/// Begins to copy `rows` rows to a tile [kCount, kDim]; the others become zeros. A thread has one
/// column of chunks, every kStep-th row: chunks lie there in the same order.
template <int kDim, int kCount, typename Thread>
CADENZA_MMA void copy_tile(const Thread& thread, const HeadRows<const Bits>& from, int rows,
                           Bits* to) {
  constexpr int kChunks = kDim / kChunk;
  if constexpr (kThreads % (kChunks * 8) == 0) {
    constexpr int kStep = kThreads / kChunks;
    const int column = thread.index() % kChunks * kChunk;
    int row = thread.index() / kChunks;
    const Bits* source = from.data + row * from.stride + column;
    to += at<kDim>(row, column);
    CADENZA_MMA_ROLL
    for (; row < kCount; row += kStep, source += kStep * from.stride, to += kStep * kDim) {
      const bool inside = row < rows;
      thread.copy(to, inside ? source : from.data, inside);
    }
  } else {
    CADENZA_MMA_ROLL
    for (int i = 0; i < kCount * kChunks / kThreads; ++i) {
      const int chunk = i * kThreads + thread.index();
      const int row = chunk / kChunks;
      const int column = chunk % kChunks * kChunk;
      const bool inside = row < rows;
      thread.copy(to + at<kDim>(row, column), from.data + (inside ? row : 0) * from.stride + column,
                  inside);
    }
  }
}

template <int kTiles>
CADENZA_MMA void clear(float (&sums)[kTiles][4]) {
  CADENZA_MMA_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    CADENZA_MMA_UNROLL
    for (int i = 0; i < 4; ++i) sums[tile][i] = 0;
  }
}

/// sums [16, 8 kTiles] += rows [left_row, +16) of `left` times rows [right_row, + 8 kTiles) of
/// `right`, over their kDim columns.
template <int kDim, int kTiles, typename Thread>
CADENZA_MMA void add_product_of_rows(const Thread& thread, const Bits* left, int left_row,
                                     const Bits* right, int right_row, float (&sums)[kTiles][4]) {
  static_assert(kTiles % 2 == 0);
  const int lane = thread.index() % 32;
  const LaneAddress l = left_address(lane);
  const LaneAddress r = right_address(lane);
  CADENZA_MMA_UNROLL
  for (int depth = 0; depth < kDim; depth += 16) {
    unsigned a[4];
    thread.load(a, left + at<kDim>(left_row + l.row, depth + l.column));
    CADENZA_MMA_UNROLL
    for (int tile = 0; tile < kTiles; tile += 2) {
      unsigned b[4];
      thread.load(b, right + at<kDim>(right_row + tile * 8 + r.row, depth + r.column));
      thread.multiply_add(sums[tile], a, b[0], b[1]);
      thread.multiply_add(sums[tile + 1], a, b[2], b[3]);
    }
  }
}

/// sums [16, kDim] += left [16, 8 kTiles] times rows [right_row, + 8 kTiles) of `right`. The left
/// factor is what a warp has in registers as sums: rounded to bfloat16 they are in their places.
template <int kDim, int kTiles, typename Thread>
CADENZA_MMA void add_product_of_sums(const Thread& thread, const float (&left)[kTiles][4],
                                     const Bits* right, int right_row, float (&sums)[kDim / 8][4]) {
  static_assert(kTiles % 2 == 0);
  const LaneAddress r = transposed_address(thread.index() % 32);
  CADENZA_MMA_UNROLL
  for (int tile = 0; tile < kTiles; tile += 2) {
    const unsigned a[4] = {thread.pack(left[tile][0], left[tile][1]),
                           thread.pack(left[tile][2], left[tile][3]),
                           thread.pack(left[tile + 1][0], left[tile + 1][1]),
                           thread.pack(left[tile + 1][2], left[tile + 1][3])};
    CADENZA_MMA_UNROLL
    for (int column = 0; column < kDim; column += 16) {
      unsigned b[4];
      thread.load_transposed(b, right + at<kDim>(right_row + tile * 8 + r.row, column + r.column));
      thread.multiply_add(sums[column / 8], a, b[0], b[1]);
      thread.multiply_add(sums[column / 8 + 1], a, b[2], b[3]);
    }
  }
}

/// What of a tile's pairs counts: queries and keys are numbered from the tile's first ones, so that
/// a few registers hold it.
struct Visible {
  int q_begin = 0, q_end = 0, k_begin = 0, k_end = 0;
  int low = 0, high = 0;

  CADENZA_MMA bool sees(int query, int key) const {
    return query >= q_begin && query < q_end && key >= k_begin && key < k_end &&
           key - query >= low && key - query <= high;
  }
  /// Of queries [q, q + queries) and keys [k, k + keys): every pair counts.
  CADENZA_MMA bool sees_all(int q, int queries, int k, int keys) const {
    return q >= q_begin && q + queries <= q_end && k >= k_begin && k + keys <= k_end &&
           k - (q + queries - 1) >= low && k + keys - 1 - q <= high;
  }
  /// No pair does.
  CADENZA_MMA bool sees_none(int q, int queries, int k, int keys) const {
    return q >= q_end || q + queries <= q_begin || k >= k_end || k + keys <= k_begin ||
           k + keys - 1 - q < low || k - (q + queries - 1) > high;
  }
};

/// Anything beyond a tile is as far as any other.
CADENZA_MMA int near(std::int64_t distance) {
  constexpr std::int64_t kFar = 1 << 20;
  return static_cast<int>(smaller(larger(distance, -kFar), kFar));
}

/// Of the tile whose first query and key are these.
CADENZA_MMA Visible visible_in(const Entry& entry, std::int64_t query, std::int64_t key) {
  return {near(entry.q_begin - query),   near(entry.q_end - query),
          near(entry.k_begin - key),     near(entry.k_end - key),
          near(entry.low + query - key), near(entry.high + query - key)};
}

/// Walks over the tiles of keys that some query of a unit sees, entry after entry.
class KeyWalk {
 public:
  CADENZA_MMA KeyWalk(const Problem& problem, const Unit& unit)
      : problem_(&problem), unit_(&unit), at_(unit.first_entry - 1) {
    next_entry();
  }

  CADENZA_MMA bool done() const { return at_ >= unit_->last_entry; }
  CADENZA_MMA const Entry& entry() const { return problem_->entries[problem_->order[at_]]; }
  CADENZA_MMA std::int64_t key() const { return key_; }
  CADENZA_MMA int keys() const { return static_cast<int>(smaller(kRows, end_ - key_)); }
  CADENZA_MMA void advance() {
    key_ += kRows;
    if (key_ >= end_) next_entry();
  }

 private:
  CADENZA_MMA void next_entry() {
    for (++at_; at_ < unit_->last_entry; ++at_) {
      const Entry& of = entry();
      if (of.head_begin > unit_->head_begin || of.head_end <= unit_->head_begin) continue;
      const std::int64_t first = larger(of.q_begin, unit_->begin);
      const std::int64_t last = smaller(of.q_end, unit_->end) - 1;
      key_ = larger(of.k_begin, first + of.low);
      end_ = smaller(of.k_end, last + of.high + 1);
      if (first <= last && key_ < end_) return;
    }
  }

  const Problem* problem_;
  const Unit* unit_;
  int at_ = 0;
  std::int64_t key_ = 0;
  std::int64_t end_ = 0;
};

/// What every pass has: its thread of a block, the unit that the block owns, and which of the
/// unit's rows the thread's sums belong to.
template <typename Thread>
class PassOverUnit {
 public:
  CADENZA_MMA PassOverUnit(const Thread& thread, const Problem& problem, const Unit& unit,
                           Bits* shared)
      : thread_(thread), problem_(problem), unit_(unit), shared_(shared) {}

 protected:
  CADENZA_MMA int lane() const { return thread_.index() % 32; }
  CADENZA_MMA int warp_row() const { return thread_.index() / 32 * 16; }
  /// Row of the unit of this lane's first two sums (0) or last two (1).
  CADENZA_MMA int row(int half) const { return warp_row() + sum_row(lane()) + 8 * half; }
  CADENZA_MMA int rows() const { return static_cast<int>(unit_.end - unit_.begin); }

  const Thread& thread_;
  const Problem& problem_;
  const Unit& unit_;
  Bits* shared_;
};

/// A pass over queries of one head, which meets the keys that they see tile by tile. Keys and
/// values of the next tile arrive while one is computed: `Shared` has two stages for them.
template <int kDim, typename Shared, typename Thread>
class PassOverQueries : public PassOverUnit<Thread> {
 public:
  using PassOverUnit<Thread>::PassOverUnit;

 protected:
  using PassOverUnit<Thread>::problem_;
  using PassOverUnit<Thread>::rows;
  using PassOverUnit<Thread>::shared_;
  using PassOverUnit<Thread>::thread_;
  using PassOverUnit<Thread>::unit_;

  /// Begins to copy the unit's rows of an array [rows, heads, kDim] to `to` in shared memory.
  CADENZA_MMA void copy_rows(const Bits* array, int to) {
    const Queries& buffer = problem_.queries[unit_.buffer];
    copy_tile<kDim, kRows>(thread_, head_rows<kDim>(array, buffer, unit_.begin, unit_.head_begin),
                           rows(), shared_ + to);
  }

  /// begin(rotation) before tiles under another rotation, and compute(visible, keys, values) for
  /// every tile, once all that was copied is there.
  template <typename Begin, typename Compute>
  CADENZA_MMA void for_each_tile(KeyWalk now, const Begin& begin, const Compute& compute) {
    copy_keys(now, 0);
    int rotation = -1;
    for (int stage = 0; !now.done(); stage ^= 1) {
      if (now.entry().rotation != rotation) {
        rotation = now.entry().rotation;
        begin(problem_.rotations[rotation]);
      }
      thread_.commit();
      KeyWalk next = now;
      next.advance();
      if (!next.done()) copy_keys(next, stage ^ 1);
      thread_.commit();
      thread_.template wait<1>();
      thread_.barrier();
      compute(visible_in(now.entry(), unit_.begin, now.key()), shared_ + Shared::keys(stage),
              shared_ + Shared::values(stage));
      thread_.barrier();  // all have read the stage that the next turn fills
      now = next;
    }
  }

 private:
  CADENZA_MMA void copy_keys(const KeyWalk& walk, int stage) {
    const Keys& buffer = problem_.keys[walk.entry().keys];
    const int head = unit_.kv_head;
    copy_tile<kDim, kRows>(thread_, head_rows<kDim>(buffer.k, buffer, walk.key(), head),
                           walk.keys(), shared_ + Shared::keys(stage));
    copy_tile<kDim, kRows>(thread_, head_rows<kDim>(buffer.v, buffer, walk.key(), head),
                           walk.keys(), shared_ + Shared::values(stage));
  }
};

}  // namespace cadenza::kernels::mma
