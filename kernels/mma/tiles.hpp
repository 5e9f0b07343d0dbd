// SPDX-License-Identifier: Apache-2.0
// Shared by the passes: tiles from memory to shared memory, products of a warp, the walk over a
// unit's keys. `Thread` is DeviceThread or, on the host, EmulatedThread.
#pragma once

#include "../device/fragment.hpp"
#include "../device/mask.hpp"
#include "layout.hpp"

namespace cadenza::kernels::mma {

inline constexpr int kQueryTile = 64;  ///< queries that dK and dV take at once
inline constexpr int kTilesPerFlush = kQueriesPerFlush / kQueryTile;

/// Rows of a unit per warp: twice those of an instruction, so that every right factor read from
/// shared memory is multiplied twice.
inline constexpr int kWarpRows = 32;

/// A lane's part of a result [kWarpRows, kColumns]: two fragments, of 16 rows each.
template <int kColumns>
using Sums = float[2][kColumns / 8][4];

/// Starts to copy `rows` rows to a tile [kCount, kDim]; the others become zeros. A thread copies
/// one column of chunks in every kStep-th row, for which chunks have the same order.
template <int kDim, int kCount, int kThreads, typename Thread>
CADENZA_DEVICE void copy_tile(const Thread& thread, const HeadRows<const Bits>& from, int rows,
                              Bits* to) {
  constexpr int kChunks = kDim / kChunk;
  if constexpr (kThreads % (kChunks * 8) == 0) {
    constexpr int kStep = kThreads / kChunks;
    const int column = thread.index() % kChunks * kChunk;
    int row = thread.index() / kChunks;
    const Bits* source = from.data + row * from.stride + column;
    to += at<kDim>(row, column);
    CADENZA_ROLL
    for (; row < kCount; row += kStep, source += kStep * from.stride, to += kStep * kDim) {
      const bool inside = row < rows;
      thread.copy(to, inside ? source : from.data, inside);
    }
  } else {
    static_assert(kCount * kChunks % kThreads == 0);
    CADENZA_ROLL
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

/// The same for rows at_rows[0] to at_rows[rows - 1] of `from`.
template <int kDim, int kCount, int kThreads, typename Thread>
CADENZA_DEVICE void gather_tile(const Thread& thread, const HeadRows<const Bits>& from,
                                const int* at_rows, int rows, Bits* to) {
  constexpr int kChunks = kDim / kChunk;
  static_assert(kCount * kChunks % kThreads == 0);
  CADENZA_ROLL
  for (int i = 0; i < kCount * kChunks / kThreads; ++i) {
    const int chunk = i * kThreads + thread.index();
    const int row = chunk / kChunks;
    const int column = chunk % kChunks * kChunk;
    const bool inside = row < rows;
    const std::int64_t source = inside ? at_rows[row] * from.stride + column : 0;
    thread.copy(to + at<kDim>(row, column), from.data + source, inside);
  }
}

template <int kFragments>
CADENZA_DEVICE void clear(float (&sums)[2][kFragments][4]) {
  CADENZA_UNROLL
  for (auto& block : sums) device::clear(block);
}

/// Adds the products of two left factors with 16 columns of right factors.
template <int kFragments, typename Thread>
CADENZA_DEVICE void multiply_add(const Thread& thread, const unsigned (&left)[2][4],
                                 const unsigned (&right)[4], int tile,
                                 float (&sums)[2][kFragments][4]) {
  CADENZA_UNROLL
  for (int block = 0; block < 2; ++block) {
    thread.multiply_add(sums[block][tile], left[block], right[0], right[1]);
    thread.multiply_add(sums[block][tile + 1], left[block], right[2], right[3]);
  }
}

/// Loads the left factors of rows [row, + kWarpRows), 16 columns from `column` on.
template <int kDim, typename Thread>
CADENZA_DEVICE void load_left(const Thread& thread, const Bits* tile, int row, int column,
                              unsigned (&left)[2][4]) {
  const LaneAddress l = left_address(thread.index() % 32);
  const int place = after<kDim>(at<kDim>(row + l.row, l.column), column);
  CADENZA_UNROLL
  for (int block = 0; block < 2; ++block) {
    thread.load(left[block], tile + place + 16 * block * kDim);
  }
}

/// Adds to sums [kWarpRows, 8 kFragments]: rows [left_row, + kWarpRows) of `left` times rows
/// [right_row, + 8 kFragments) of `right`, over their kDim columns.
template <int kDim, int kFragments, typename Thread>
CADENZA_DEVICE void add_product_of_rows(const Thread& thread, const Bits* left, int left_row,
                                        const Bits* right, int right_row,
                                        float (&sums)[2][kFragments][4]) {
  static_assert(kFragments % 2 == 0);
  const LaneAddress r = right_address(thread.index() % 32);
  const int place = at<kDim>(right_row + r.row, r.column);
  CADENZA_UNROLL
  for (int depth = 0; depth < kDim; depth += 16) {
    unsigned a[2][4];
    load_left<kDim>(thread, left, left_row, depth, a);
    CADENZA_UNROLL
    for (int tile = 0; tile < kFragments; tile += 2) {
      unsigned b[4];
      thread.load(b, right + after<kDim>(place, depth) + tile * 8 * kDim);
      multiply_add(thread, a, b, tile, sums);
    }
  }
}

/// Adds to sums [kWarpRows, 8 kFragments]: left [kWarpRows, 16] times rows [right_row, + 16) of
/// `right`, in the columns from `column` on.
template <int kDim, int kFragments, typename Thread>
CADENZA_DEVICE void add_product_of_columns(const Thread& thread, const unsigned (&left)[2][4],
                                           const Bits* right, int right_row, int column,
                                           float (&sums)[2][kFragments][4]) {
  static_assert(kFragments % 2 == 0);
  const LaneAddress r = transposed_address(thread.index() % 32);
  const int place = at<kDim>(right_row + r.row, r.column);
  CADENZA_UNROLL
  for (int tile = 0; tile < kFragments; tile += 2) {
    unsigned b[4];
    thread.load_transposed(b, right + after<kDim>(place, column + tile * 8));
    multiply_add(thread, left, b, tile, sums);
  }
}

/// Adds a product with a left factor [kWarpRows, 8 kDepth] that a warp holds as sums in registers:
/// rounded to bfloat16, they are in their places.
template <int kDim, int kDepth, int kFragments, typename Thread>
CADENZA_DEVICE void add_product_of_sums(const Thread& thread, const float (&left)[2][kDepth][4],
                                        const Bits* right, int right_row,
                                        float (&sums)[2][kFragments][4]) {
  CADENZA_UNROLL
  for (int depth = 0; depth < kDepth; depth += 2) {
    unsigned a[2][4];
    CADENZA_UNROLL
    for (int block = 0; block < 2; ++block) pack(thread, left[block], depth, a[block]);
    add_product_of_columns<kDim>(thread, a, right, right_row + depth * 8, 0, sums);
  }
}

/// A tile of keys that some query of a unit sees. It walks over the unit's entries.
template <int kDim, int kTile>
struct KeyTile {
  using Problem = device::Problem;

  const Bits* k = nullptr;  ///< first row
  const Bits* v = nullptr;
  int stride = 0;
  int left = 0;  ///< keys from the first one to the entry's end; 0: no tile
  int entry = 0;
  int rotation = 0;
  Visible visible;

  CADENZA_DEVICE bool done() const { return left <= 0; }
  CADENZA_DEVICE int keys() const { return left < kTile ? left : kTile; }
  /// Whether every pair of queries [q, q + queries) of the unit and keys of the tile counts; none.
  CADENZA_DEVICE bool sees_all(int q, int queries) const {
    return visible.sees_all(q, queries, 0, kTile);
  }
  CADENZA_DEVICE bool sees_none(int q, int queries) const {
    return visible.sees_none(q, queries, 0, kTile);
  }
  CADENZA_DEVICE bool sees_some(int query) const { return visible.sees_some(query, kTile); }
  CADENZA_DEVICE SeenColumns seen(int query) const { return keys_of(visible, query); }
  /// Starts to copy its keys and values to shared memory.
  template <int kThreads, typename Thread>
  CADENZA_DEVICE void copy(const Thread& thread, Bits* to_keys, Bits* to_values) const {
    copy_tile<kDim, kTile, kThreads>(thread, {k, stride}, keys(), to_keys);
    copy_tile<kDim, kTile, kThreads>(thread, {v, stride}, keys(), to_values);
  }
  /// Moves to the first tile of a unit.
  CADENZA_DEVICE void start(const Problem& problem, const Unit& unit) {
    enter(problem, unit, unit.first_entry);
  }
  CADENZA_DEVICE void advance(const Problem& problem, const Unit& unit) {
    left -= kTile;
    if (left <= 0) return enter(problem, unit, entry + 1);
    visible.pass_keys(kTile);
    k += kTile * stride;
    v += kTile * stride;
  }

 private:
  /// Moves to the first tile of the first entry, from `from` on, that has one.
  CADENZA_DEVICE void enter(const Problem& problem, const Unit& unit, int from) {
    left = 0;
    for (entry = from; entry < unit.last_entry; ++entry) {
      const Entry& of = problem.entries[problem.order[entry]];
      const Tokens met = keys_met(of, unit);
      if (met.empty()) continue;
      const Keys& buffer = problem.keys[of.keys];
      k = head_rows<kDim>(buffer.k, buffer, met.begin, unit.kv_head).data;
      v = head_rows<kDim>(buffer.v, buffer, met.begin, unit.kv_head).data;
      stride = buffer.heads * kDim;
      left = clamped(met.end - met.begin);
      rotation = of.rotation;
      visible = visible_in(of, unit.begin, met.begin);
      return;
    }
  }
};

/// Room for the four tiles of a walk that a block handles at a time.
inline constexpr int kWalkBits = 4 * 128 / static_cast<int>(sizeof(Bits));

/// Base of all passes: its thread of a block, the unit that the block owns, the unit's rows to
/// which the thread's sums belong, and the walk over tiles of the other side. kShare warps have the
/// same rows.
template <typename Shape, typename Tile, typename Thread, int kShare = 1>
class PassOverUnit {
 public:
  using Problem = typename Tile::Problem;

  CADENZA_DEVICE PassOverUnit(const Thread& thread, const Problem& problem, const Unit& unit,
                              Bits* shared)
      : thread_(thread), problem_(problem), unit_(unit), shared_(shared) {}

 protected:
  CADENZA_DEVICE int lane() const { return thread_.index() % 32; }
  CADENZA_DEVICE int warp_row() const { return thread_.index() / 32 / kShare * kWarpRows; }
  /// Number of the warp among those of the same rows.
  CADENZA_DEVICE int share() const { return thread_.index() / 32 % kShare; }
  /// A lane's first row in a fragment, counted in the unit; half 1 is eight rows later.
  CADENZA_DEVICE int row(int block, int half = 0) const {
    return warp_row() + 16 * block + sum_row(lane()) + 8 * half;
  }
  CADENZA_DEVICE int rows() const { return static_cast<int>(unit_.end - unit_.begin); }

  /// Sets sums that rows do not see to `value`. @param seen  seen(row)
  template <int kFragments, typename Seen>
  CADENZA_DEVICE void apply_mask(const Seen& seen, float value,
                                 float (&sums)[2][kFragments][4]) const {
    CADENZA_UNROLL
    for (int block = 0; block < 2; ++block) {
      const auto seen_half = [&](int half) { return seen(row(block, half)); };
      device::apply_mask(thread_, seen_half, value, sums[block]);
    }
  }

  /// Waits for the copies of all threads.
  CADENZA_DEVICE void wait_for_copies() const {
    thread_.commit();
    thread_.template wait<0>();
    thread_.barrier();
  }

  /// Returns the tile of the previous turn, of this turn, or of one of the next two.
  CADENZA_DEVICE Tile& tile(int turn) const {
    static_assert(4 * sizeof(Tile) <= kWalkBits * sizeof(Bits));
    return reinterpret_cast<Tile*>(shared_ + Shape::kWalk)[turn % 4];
  }

  /// Calls first() before the first tile, then, for every tile, copy(tile, stage) and, once it has
  /// arrived, compute(turn), whose stage is turn % 2; flush() after every kTilesPerFlush tiles and
  /// after the last. The next tile arrives while one is computed: there are two stages. The walk is
  /// in shared memory, where it takes no registers: one thread advances it while the last tile it
  /// found is copied. Returns the number of turns.
  template <typename First, typename Copy, typename Compute, typename Flush>
  CADENZA_DEVICE int for_each_tile(const First& first, const Copy& copy, const Compute& compute,
                                   const Flush& flush) {
    if (thread_.index() == 0) {
      tile(0).start(problem_, unit_);
      find_after(0);
    }
    thread_.barrier();
    if (tile(0).done()) return 0;
    first();
    copy(tile(0), 0);
    int turn = 0;
    CADENZA_ROLL
    while (!tile(turn).done()) {
      CADENZA_ROLL
      do {
        wait_for_copies();  // for this tile; and all have read the previous one
        if (!tile(turn + 1).done()) {
          copy(tile(turn + 1), (turn + 1) % 2);
          if (thread_.index() == 0) find_after(turn + 1);
        }
        compute(turn);
      } while (++turn % kTilesPerFlush != 0 && !tile(turn).done());
      flush();
    }
    return turn;
  }

  const Thread& thread_;
  const Problem& problem_;
  const Unit& unit_;
  Bits* shared_;

 private:
  CADENZA_DEVICE void find_after(int turn) const {
    tile(turn + 1) = tile(turn);
    if (!tile(turn).done()) tile(turn + 1).advance(problem_, unit_);
  }
};

/// A pass over queries of one head and the keys that they see, in tiles Tile.
template <int kDim, typename Shape, typename Thread, typename Tile>
class PassOverQueries : public PassOverUnit<Shape, Tile, Thread> {
  using Base = PassOverUnit<Shape, Tile, Thread>;

 public:
  using Base::Base;

 protected:
  using Base::thread_, Base::problem_, Base::unit_, Base::shared_, Base::rows, Base::tile;

  /// Starts to copy the unit's rows of an array [rows, heads, kDim] to `to` in shared memory.
  CADENZA_DEVICE void copy_rows(const Bits* array, int to) {
    const Queries& buffer = problem_.queries[unit_.buffer];
    copy_tile<kDim, Shape::kRows, Shape::kThreads>(
        thread_, head_rows<kDim>(array, buffer, unit_.begin, unit_.head_begin), rows(),
        shared_ + to);
  }

  /// Calls begin(rotation) before tiles under one rotation, end(rotation) after them, and
  /// compute(tile, keys, values) for every tile, once its copies have arrived.
  template <typename Begin, typename End, typename Compute>
  CADENZA_DEVICE void for_each_tile(const Begin& begin, const End& end, const Compute& compute) {
    const int turns = Base::for_each_tile(
        [&] { begin(rotation(0)); },
        [this](const Tile& tile, int stage) {
          tile.template copy<Shape::kThreads>(thread_, shared_ + Shape::keys(stage),
                                              shared_ + Shape::values(stage));
        },
        [&](int turn) {
          if (turn > 0 && tile(turn).rotation != tile(turn - 1).rotation) {
            end(rotation(turn - 1));
            begin(rotation(turn));
            this->wait_for_copies();
          }
          compute(tile(turn), shared_ + Shape::keys(turn % 2), shared_ + Shape::values(turn % 2));
        },
        [] {});
    if (turns > 0) end(rotation(turns - 1));
  }

 private:
  CADENZA_DEVICE const Rotation& rotation(int turn) const {
    return problem_.rotations[tile(turn).rotation];
  }
};

}  // namespace cadenza::kernels::mma
