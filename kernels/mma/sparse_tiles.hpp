// SPDX-License-Identifier: Apache-2.0
// The tiles of a sparse call, which its walks find in the patterns themselves: columns are gathered
// keys, up to a tile of them at once, under the task's band; active blocks are keys that follow
// each other, without the columns. So every pair is in one tile.
#pragma once

#include "../device/epilogue.hpp"
#include "../device/pattern_walk.hpp"
#include "tiles.hpp"

namespace cadenza::kernels::mma {

/// Keys of a tile that a query sees.
struct KeySet {
  std::uint64_t bits = 0;
  CADENZA_DEVICE bool has(int key) const { return (bits >> key & 1) != 0; }
};

/// In place of KeyTile: keys of a pattern that some query of a unit sees. For every entry, the
/// columns, then the active blocks of one row of blocks after another.
template <int kDim, int kTile>
struct SparseKeyTile {
  using Problem = SparseProblem;

  const Bits* k = nullptr;  ///< first row; of gathered keys the buffer's
  const Bits* v = nullptr;
  const int* gathered = nullptr;  ///< the keys' rows; null: they follow each other
  const std::uint64_t* column_bits = nullptr;
  std::uint64_t left_out = 0;  ///< keys of the tile that are columns, which are gathered
  int stride = 0;
  int left = 0;  ///< keys from the first one to the run's end; 0: no tile
  int entry = 0;
  int rotation = 0;
  int row = 0;   ///< the first key's, in its buffer
  int span = 0;  ///< tokens from the first key to the last
  LineWalk walk;
  Visible visible;

  CADENZA_DEVICE bool done() const { return left <= 0; }
  CADENZA_DEVICE int keys() const { return left < kTile ? left : kTile; }
  CADENZA_DEVICE bool sees_all(int q, int queries) const {
    return left >= kTile && left_out == 0 && visible.sees_all(q, queries, 0, span);
  }
  CADENZA_DEVICE bool sees_none(int q, int queries) const {
    return visible.sees_none(q, queries, 0, span);
  }
  CADENZA_DEVICE bool sees_some(int query) const { return seen(query).bits != 0; }
  CADENZA_DEVICE KeySet seen(int query) const {
    const SeenColumns tokens = keys_of(visible, query);
    int begin = tokens.begin;
    int end = begin + static_cast<int>(tokens.size);
    if (gathered != nullptr) {
      begin = rows_before(gathered, keys(), std::int64_t{row} + begin);
      end = rows_before(gathered, keys(), std::int64_t{row} + end);
    }
    return {bits_between(begin, end) & ~left_out};
  }

  template <int kThreads, typename Thread>
  CADENZA_DEVICE void copy(const Thread& thread, Bits* to_keys, Bits* to_values) const {
    if (gathered == nullptr) {
      copy_tile<kDim, kTile, kThreads>(thread, {k, stride}, keys(), to_keys);
      copy_tile<kDim, kTile, kThreads>(thread, {v, stride}, keys(), to_values);
    } else {
      gather_tile<kDim, kTile, kThreads>(thread, {k, stride}, gathered, keys(), to_keys);
      gather_tile<kDim, kTile, kThreads>(thread, {v, stride}, gathered, keys(), to_values);
    }
  }

  CADENZA_DEVICE void start(const Problem& problem, const Unit& unit) {
    *this = {};
    entry = unit.first_entry - 1;
    find(problem, unit);
  }
  CADENZA_DEVICE void advance(const Problem& problem, const Unit& unit) {
    left -= kTile;
    if (left <= 0) return find(problem, unit);
    const int passed = gathered != nullptr ? gathered[kTile] - row : kTile;
    row += passed;
    visible.pass_keys(passed);
    if (gathered != nullptr) {
      gathered += kTile;
      span = gathered[keys() - 1] - row + 1;
    } else {
      k += kTile * stride;
      v += kTile * stride;
      left_out = bits_from(column_bits, row) & bits_between(0, kTile);
    }
  }

 private:
  /// Moves to the next run's first tile.
  CADENZA_DEVICE void find(const Problem& problem, const Unit& unit) {
    left = 0;
    CADENZA_ROLL
    while (left <= 0) {
      if (walk.has_run()) {
        take_run(problem, unit);
      } else if (walk.has_line()) {
        const Pattern& pattern = pattern_of(problem, unit);
        walk.next_line(problem.first_runs + pattern.q_runs, pattern.relative);
      } else if (++entry < unit.last_entry) {
        open(problem, unit);
      } else {
        return;
      }
    }
  }

  CADENZA_DEVICE const Entry& entry_of(const Problem& problem) const {
    return problem.entries[problem.order[entry]];
  }
  CADENZA_DEVICE const Pattern& pattern_of(const Problem& problem, const Unit& unit) const {
    return problem.patterns[entry_of(problem).pattern + unit.head_begin];
  }

  /// Starts an entry, with its columns.
  CADENZA_DEVICE void open(const Problem& problem, const Unit& unit) {
    const Entry& of = entry_of(problem);
    const Tokens met = keys_met(of, unit);
    if (met.empty()) return;
    const Pattern& pattern = pattern_of(problem, unit);
    const std::int64_t first_query = problem.queries[of.queries].begin;
    walk.start(problem.edges + pattern.q_edges, pattern.lines,
               max(of.q_begin, unit.begin) - first_query, min(of.q_end, unit.end) - first_query);
    column_bits = problem.column_bits + pattern.column_bits;
    rotation = of.rotation;
    const Keys& buffer = problem.keys[of.keys];
    stride = buffer.heads * kDim;
    const int* rows = problem.columns + pattern.first_column;
    const int first = rows_before(rows, pattern.columns, met.begin - buffer.begin);
    left = rows_before(rows, pattern.columns, met.end - buffer.begin) - first;
    if (left == 0) return;
    gathered = rows + first;
    row = *gathered;
    span = gathered[keys() - 1] - row + 1;
    left_out = 0;
    begin_at(buffer, unit, buffer.begin);
    visible = visible_in(of, unit.begin, buffer.begin + row);
  }

  /// Takes the next run of active blocks of a row of blocks.
  CADENZA_DEVICE void take_run(const Problem& problem, const Unit& unit) {
    const Entry& of = entry_of(problem);
    const Pattern& pattern = pattern_of(problem, unit);
    const Keys& buffer = problem.keys[of.keys];
    const int* q_edges = problem.edges + pattern.q_edges + walk.line;
    const Tokens queries =
        intersection(intersection({of.q_begin, of.q_end}, {unit.begin, unit.end}),
                     tokens_of({q_edges[0], q_edges[1]}, problem.queries[of.queries].begin));
    const Tokens blocks = tokens_of(walk.next_run(problem.runs, pattern.relative,
                                                  problem.edges + pattern.k_edges, pattern.lines),
                                    buffer.begin);
    if (queries.empty()) return;
    const Tokens met = intersection(intersection({of.k_begin, of.k_end}, blocks),
                                    {queries.begin + of.low, queries.end + of.high});
    if (met.empty()) return;
    gathered = nullptr;
    left = clamped(met.end - met.begin);
    row = static_cast<int>(met.begin - buffer.begin);
    span = kTile;
    left_out = bits_from(column_bits, row) & bits_between(0, kTile);
    begin_at(buffer, unit, met.begin);
    visible = visible_in(of, unit.begin, met.begin);
    visible.q_begin = clamped(queries.begin - unit.begin);
    visible.q_end = clamped(queries.end - unit.begin);
    visible.k_end = left;
  }

  CADENZA_DEVICE void begin_at(const Keys& buffer, const Unit& unit, std::int64_t token) {
    k = head_rows<kDim>(buffer.k, buffer, token, unit.kv_head).data;
    v = head_rows<kDim>(buffer.v, buffer, token, unit.kv_head).data;
  }
};

/// In place of QueryTile: queries of a head that see some key of a unit in its pattern. A unit of
/// gathered keys sees all queries under the band of its entries. Any other sees active blocks, for
/// every entry and head: of one run after another if all lines have the same, where a row of blocks
/// sees some of the unit's columns of blocks at once; otherwise of one column after another.
template <int kDim, int kTile>
struct SparseQueryTile {
  using Problem = SparseProblem;
  static constexpr bool kGathers = true;

  const Bits* rotated = nullptr;  ///< first row of the tile's head
  const Bits* dout = nullptr;
  const float* lse = nullptr;
  const float* delta = nullptr;
  unsigned left_out[4] = {};  ///< keys of the unit that are columns, which others gather
  int stride = 0;             ///< in heads
  int head = 0;
  int last_head = 0;  ///< behind the entry's last one
  int left = 0;       ///< queries from the first one to the run's end; 0: no tile
  int entry = 0;
  int first_column = 0;  ///< columns of blocks of the unit: [first_column, end_column)
  int end_column = 0;
  LineWalk walk;  ///< over columns and their runs or, where all have the same, runs and their rows
  Visible visible;

  CADENZA_DEVICE bool done() const { return left <= 0; }
  CADENZA_DEVICE int queries() const { return left < kTile ? left : kTile; }
  /// Keys [key, + keys) are a warp's.
  CADENZA_DEVICE bool sees_all(int q, int queries, int key, int keys, const int* offsets) const {
    return left_out[key / 32] == 0 &&
           visible.sees_all(q, queries, offsets[key], span(key, keys, offsets));
  }
  CADENZA_DEVICE bool sees_none(int q, int queries, int key, int keys, const int* offsets) const {
    return visible.sees_none(q, queries, offsets[key], span(key, keys, offsets));
  }
  CADENZA_DEVICE auto seen(int part, int warp_key, const int* offsets) const {
    return [this, word = warp_key / 32, part, offsets](int key) {
      const SeenColumns tokens = queries_of(visible, offsets[key]).from(part);
      return SeenColumns{tokens.begin, (left_out[word] >> key % 32 & 1) != 0 ? 0 : tokens.size};
    };
  }

  CADENZA_DEVICE void start(const Problem& problem, const Unit& unit) {
    *this = {};
    entry = unit.first_entry - 1;
    find(problem, unit);
  }
  CADENZA_DEVICE void advance(const Problem& problem, const Unit& unit) {
    left -= kTile;
    if (left <= 0) return find(problem, unit);
    rotated += kTile * stride * kDim;
    dout += kTile * stride * kDim;
    lse += kTile * stride;
    delta += kTile * stride;
    visible.pass_queries(kTile);
  }

  /// Returns the token of a unit's key, counted from its first one; beyond the last key, one that
  /// no mask reaches.
  CADENZA_DEVICE static int key_offset(const Problem& problem, const Unit& unit, int row) {
    constexpr int kBeyond = 1 << 29;  // so that sums with a mask's edges fit
    if (unit.columns == 0) return row < unit.end - unit.begin ? row : kBeyond;
    const int* rows = problem.columns + unit.first_column;
    return row < unit.columns ? rows[row] - rows[0] : kBeyond;
  }

  /// Returns where gradients of a unit go: those of gathered keys to rows of its own.
  CADENZA_DEVICE static KeyGradientRows gradient_rows(const Problem& problem, const Unit& unit) {
    if (unit.columns == 0) return key_gradient_rows<kDim>(problem, unit);
    float* first = problem.column_gradients + std::int64_t{unit.first_column} * 2 * kDim;
    return {{first, 2 * kDim}, {first + kDim, 2 * kDim}, unit.columns};
  }

 private:
  CADENZA_DEVICE static int span(int key, int keys, const int* offsets) {
    return offsets[key + keys - 1] - offsets[key] + 1;
  }

  CADENZA_DEVICE void find(const Problem& problem, const Unit& unit) {
    left = 0;
    CADENZA_ROLL
    while (left <= 0) {
      if (walk.has_run()) {
        take_blocks(problem, unit);
      } else if (walk.has_line()) {
        next_line(problem);
      } else if (head + 1 < last_head) {
        ++head;
        open_head(problem, unit);
      } else if (++entry < unit.last_entry) {
        const Heads met = heads_met(entry_of(problem), unit);
        head = met.first - 1;
        last_head = queries_met(entry_of(problem), unit).empty() ? 0 : met.end;
      } else {
        return;
      }
    }
  }

  CADENZA_DEVICE const Entry& entry_of(const Problem& problem) const {
    return problem.entries[problem.order[entry]];
  }
  CADENZA_DEVICE const Pattern& pattern_of(const Problem& problem) const {
    return problem.patterns[entry_of(problem).pattern + head];
  }

  CADENZA_DEVICE void open_head(const Problem& problem, const Unit& unit) {
    const Entry& of = entry_of(problem);
    if (unit.columns > 0) return take(problem, unit, queries_met(of, unit), {unit.begin, unit.end});
    const Pattern& pattern = pattern_of(problem);
    const std::int64_t first_key = problem.keys[of.keys].begin;
    walk.start(problem.edges + pattern.k_edges, pattern.lines,
               max(of.k_begin, unit.begin) - first_key, min(of.k_end, unit.end) - first_key);
    first_column = walk.line + 1;
    end_column = walk.last_line;
    if (pattern.relative != 0) {
      walk.line = problem.first_runs[pattern.k_runs] - 1;
      walk.last_line = problem.first_runs[pattern.k_runs + 1];
    }
    const std::uint64_t* bits =
        problem.column_bits + pattern.column_bits + (unit.begin - first_key) / 64;
    for (int word = 0; word < 4; ++word) {
      left_out[word] = static_cast<unsigned>(bits[word / 2] >> word % 2 * 32);
    }
  }

  CADENZA_DEVICE void next_line(const Problem& problem) {
    const Pattern& pattern = pattern_of(problem);
    if (pattern.relative == 0) return walk.next_line(problem.first_runs + pattern.k_runs, 0);
    const BlockRun of = problem.runs[++walk.line];
    walk.run = first_column + of.first;
    walk.last_run = clamped(min(pattern.lines, end_column + of.last));
  }

  /// Takes the next active blocks.
  CADENZA_DEVICE void take_blocks(const Problem& problem, const Unit& unit) {
    const Entry& of = entry_of(problem);
    const Pattern& pattern = pattern_of(problem);
    const bool relative = pattern.relative != 0;
    const int next = walk.run++;
    const BlockRun run = problem.runs[relative ? walk.line : next];
    // Their rows and columns of blocks: from the first, up to the end.
    const int row = relative ? next : run.first;
    const int end_row = relative ? next + 1 : run.last + 1;
    const int column = relative ? clamped(max(first_column, next - run.last)) : walk.line;
    const int end = relative ? clamped(min(end_column, next - run.first + 1)) : walk.line + 1;
    const int* k_edges = problem.edges + pattern.k_edges;
    const int* q_edges = problem.edges + pattern.q_edges;
    const Tokens keys =
        intersection(intersection({of.k_begin, of.k_end}, {unit.begin, unit.end}),
                     tokens_of({k_edges[column], k_edges[end]}, problem.keys[of.keys].begin));
    if (keys.empty()) return;
    const Tokens met = intersection(
        intersection({of.q_begin, of.q_end}, {keys.begin - of.high, keys.end - of.low}),
        tokens_of({q_edges[row], q_edges[end_row]}, problem.queries[of.queries].begin));
    if (!met.empty()) take(problem, unit, met, keys);
  }

  /// Takes queries that see keys of the unit.
  CADENZA_DEVICE void take(const Problem& problem, const Unit& unit, const Tokens& met,
                           const Tokens& keys) {
    const Entry& of = entry_of(problem);
    const Queries& buffer = problem.queries[of.queries];
    const std::int64_t row = (met.begin - buffer.begin) * buffer.heads + head - buffer.first_head;
    rotated = problem.rotations[of.rotation].rotated + row * kDim;
    dout = buffer.dout + row * kDim;
    lse = buffer.lse + row;
    delta = buffer.delta + row;
    stride = buffer.heads;
    left = clamped(met.end - met.begin);
    visible = visible_in(of, met.begin, unit.begin);
    visible.q_end = left;
    visible.k_begin = clamped(max(of.k_begin, keys.begin) - unit.begin);
    visible.k_end = clamped(min(of.k_end, keys.end) - unit.begin);
  }
};

/// The shape of a sparse pass: its masks take more registers, so no three blocks fit.
template <typename Shape>
struct SparseShape : Shape {
  static constexpr int kBlocks = Shape::kBlocks < 2 ? Shape::kBlocks : 2;
};

template <int kDim, typename Thread>
using SparseForward = Forward<kDim, Thread, SparseKeyTile>;
template <int kDim, typename Thread>
using SparseQueryGradient = QueryGradient<kDim, Thread, SparseKeyTile>;
template <int kDim, typename Thread>
using SparseKeyGradient = KeyGradient<kDim, Thread, SparseQueryTile>;

}  // namespace cadenza::kernels::mma
