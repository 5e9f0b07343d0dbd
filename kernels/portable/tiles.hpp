// SPDX-License-Identifier: Apache-2.0
// Moves tiles between memory and a team's scratch: rows, transposed rows, rotation, masks.
//
// Names: a scratch matrix "of rows" has a row per token; "of columns" has a column per token (its
// transpose), as the right factor of a product over head_dim requires.
#pragma once

#include "problem.hpp"

namespace cadenza::kernels::portable {

/// Tokens of one head in memory: element d of row r at data[r * stride + d].
template <typename Real>
struct HeadRows {
  Real* data = nullptr;
  std::int64_t stride = 0;
  int rows = 0;
};

/// Place of tokens of one head in the arrays of a buffer, counted in heads.
struct HeadPlace {
  std::int64_t first = 0;
  std::int64_t stride = 0;
  int rows = 0;
};

/// Returns the place of `rows` tokens from `token` on; `all`: heads of rows whose buffer does not
/// name its heads.
template <typename Buffer>
KOKKOS_INLINE_FUNCTION HeadPlace place_of(const Buffer& buffer, int all, std::int64_t token,
                                          int rows, int head) {
  const Range held = held_heads(buffer.heads, all);
  const std::int64_t stride = held.end - held.begin;
  return {(token - buffer.tokens.begin) * stride + head - held.begin, stride, rows};
}

/// Returns the rows at `place` of an array [tokens, heads, dim].
template <typename Real>
KOKKOS_INLINE_FUNCTION HeadRows<Real> head_rows(Real* data, const HeadPlace& place, int dim) {
  return {data + place.first * dim, place.stride * dim, place.rows};
}

/// Copies rows, and zeroes the columns that only pad the last register block.
template <typename Real>
KOKKOS_INLINE_FUNCTION void load_rows(const Member& team, const HeadRows<const Real>& from, int dim,
                                      Real* to, int to_pitch) {
  const int padded = round_up(dim, kBlockColumns<Real>);
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, from.rows), [&](int r) {
    const Real* KOKKOS_RESTRICT in = from.data + r * from.stride;
    Real* KOKKOS_RESTRICT out = to + r * to_pitch;
    for (int d = 0; d < dim; ++d) out[d] = in[d];
    for (int d = dim; d < padded; ++d) out[d] = 0;
  });
}

/// Copies rows into columns, and zeroes the columns that only pad the last register block.
template <typename Real>
KOKKOS_INLINE_FUNCTION void load_columns(const Member& team, const HeadRows<const Real>& from,
                                         int dim, Real* to, int to_pitch) {
  const int padded = round_up(from.rows, kBlockColumns<Real>);
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, padded), [&](int r) {
    if (r < from.rows) {
      const Real* in = from.data + r * from.stride;
      for (int d = 0; d < dim; ++d) to[d * to_pitch + r] = in[d];
    } else {
      for (int d = 0; d < dim; ++d) to[d * to_pitch + r] = 0;
    }
  });
}

KOKKOS_INLINE_FUNCTION bool same_positions(const PositionMap& a, const PositionMap& b) {
  return a.first == b.first && a.step == b.step && a.cap == b.cap;
}

/// Loads queries of one head, rotated by the rows of the table and multiplied by `problem.scale`.
/// Element (r, d) goes to to[r * row_step + d * dim_step].
template <typename Real>
KOKKOS_INLINE_FUNCTION void load_queries(const Member& team, const Problem<Real>& problem,
                                         const HeadRows<const Real>& from,
                                         const TableRows& positions, Real* to, int row_step,
                                         int dim_step) {
  const int half = problem.half;
  const int dim = problem.dim;
  const Real scale = problem.scale;
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, from.rows), [&](int r) {
    const Real* KOKKOS_RESTRICT in = from.data + r * from.stride;
    const std::int64_t at = positions.of(r) * half;
    const Real* KOKKOS_RESTRICT cos = problem.cos + at;
    const Real* KOKKOS_RESTRICT sin = problem.sin + at;
    Real* KOKKOS_RESTRICT out = to + r * row_step;
    for (int d = 0; d < half; ++d) {
      const Real low = in[d] * scale;
      const Real high = in[d + half] * scale;
      out[d * dim_step] = low * cos[d] - high * sin[d];
      out[(d + half) * dim_step] = high * cos[d] + low * sin[d];
    }
    for (int d = 2 * half; d < dim; ++d) out[d * dim_step] = in[d] * scale;
  });
}

/// Loads lse and delta of one head, one per query. A row without keys has lse = -inf; it becomes
/// +inf here, so that exp(logit - lse) is 0 without a special case.
template <typename Real>
KOKKOS_INLINE_FUNCTION void load_statistics(const Member& team, const QueryRows<Real>& buffer,
                                            const HeadPlace& place, Real* lse, Real* delta) {
  const Real infinity = Kokkos::Experimental::infinity_v<Real>;
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, kQueryTile), [&](int r) {
    const std::int64_t at = place.first + r * place.stride;
    const Real value = r < place.rows ? buffer.lse[at] : infinity;
    lse[r] = value == -infinity ? infinity : value;
    delta[r] = r < place.rows ? buffer.delta[at] : 0;
  });
}

/// Adds scale * (rows rotated back) to memory: the gradient of unrotated queries.
template <typename Real>
KOKKOS_INLINE_FUNCTION void add_query_gradient(const Member& team, const Problem<Real>& problem,
                                               const Real* from, int from_pitch,
                                               const HeadRows<Real>& to,
                                               const TableRows& positions) {
  const int half = problem.half;
  const int dim = problem.dim;
  const Real scale = problem.scale;
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, to.rows), [&](int r) {
    const Real* KOKKOS_RESTRICT in = from + r * from_pitch;
    const std::int64_t at = positions.of(r) * half;
    const Real* KOKKOS_RESTRICT cos = problem.cos + at;
    const Real* KOKKOS_RESTRICT sin = problem.sin + at;
    Real* KOKKOS_RESTRICT out = to.data + r * to.stride;
    for (int d = 0; d < half; ++d) {
      const Real low = in[d] * scale;
      const Real high = in[d + half] * scale;
      out[d] += low * cos[d] + high * sin[d];
      out[d + half] += high * cos[d] - low * sin[d];
    }
    for (int d = 2 * half; d < dim; ++d) out[d] += in[d] * scale;
  });
}

/// Adds rows to memory.
template <typename Real>
KOKKOS_INLINE_FUNCTION void add_rows(const Member& team, const Real* from, int from_pitch, int dim,
                                     const HeadRows<Real>& to) {
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, to.rows), [&](int r) {
    const Real* KOKKOS_RESTRICT in = from + r * from_pitch;
    Real* KOKKOS_RESTRICT out = to.data + r * to.stride;
    for (int d = 0; d < dim; ++d) out[d] += in[d];
  });
}

template <typename Real>
KOKKOS_INLINE_FUNCTION void fill(const Member& team, Real* to, int count, Real value) {
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, count), [&](int i) { to[i] = value; });
}

/// Keys [begin, end) of a tile, counted from its first.
struct SeenKeys {
  int begin = 0;
  int end = 0;
};

/// Limits a number of keys to those of a tile.
KOKKOS_INLINE_FUNCTION int within(std::int64_t count, int keys) {
  return count <= 0 ? 0 : count < keys ? static_cast<int>(count) : keys;
}

/// Keys of [key_begin, key_begin + keys) that query token `query` sees.
KOKKOS_INLINE_FUNCTION SeenKeys seen_in_tile(const Band& band, std::int64_t query,
                                             std::int64_t key_begin, int keys) {
  const std::int64_t row = query - key_begin;
  return {within(row + band.low, keys), within(row + band.high + 1, keys)};
}

/// One step of a unit that owns queries: a task's queries inside the unit's tile, and one tile of
/// its keys.
struct KeyStep {
  Band band;
  Range queries;           ///< tokens
  std::int64_t begin = 0;  ///< first key
  int keys = 0;
  int first_row = 0;  ///< first row of the unit's tile that takes part; a multiple of a block
  int last_row = 0;   ///< the row after the last one
};

/// Calls visit(KeyStep) for every tile of keys that some query of `task` in the unit's tile sees.
template <typename Real, typename Visit>
KOKKOS_INLINE_FUNCTION void for_each_key_step(const Unit& unit, const Task& task, Visit&& visit) {
  KeyStep step;
  step.band = task.band;
  step.queries.begin = Kokkos::max(task.q.begin, unit.begin);
  step.queries.end = Kokkos::min(task.q.end, unit.end);
  step.last_row = static_cast<int>(step.queries.end - unit.begin);
  const std::int64_t end = Kokkos::min(task.k.end, step.queries.end + task.band.high);
  const std::int64_t unseen = step.queries.begin + task.band.low - task.k.begin;
  step.begin = task.k.begin + (unseen > 0 ? unseen - unseen % kKeyTile : 0);
  for (; step.begin < end; step.begin += kKeyTile) {
    step.keys = static_cast<int>(Kokkos::min<std::int64_t>(kKeyTile, end - step.begin));
    const std::int64_t first = Kokkos::max(step.queries.begin, step.begin - task.band.high);
    const int row = static_cast<int>(first - unit.begin);
    step.first_row = row - row % kBlockColumns<Real>;
    visit(step);
  }
}

/// Writes the keys [begins[row], ends[row]) of the step that each row of the unit's tile sees; none
/// outside the task.
template <typename Real>
KOKKOS_INLINE_FUNCTION void find_seen(const Member& team, const Unit& unit, const KeyStep& step,
                                      Real* begins, Real* ends) {
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, kQueryTile), [&](int row) {
    const std::int64_t query = unit.begin + row;
    const bool inside = query >= step.queries.begin && query < step.queries.end;
    const SeenKeys seen = seen_in_tile(step.band, query, step.begin, step.keys);
    begins[row] = static_cast<Real>(inside ? seen.begin : 0);
    ends[row] = static_cast<Real>(inside ? seen.end : 0);
  });
}

/// Returns the query heads of `unit` that `task` computes.
KOKKOS_INLINE_FUNCTION Range heads_of(const Unit& unit, const Task& task) {
  return {Kokkos::max<std::int64_t>(unit.head_begin, task.heads.begin),
          Kokkos::min<std::int64_t>(unit.head_end, task.heads.end)};
}

}  // namespace cadenza::kernels::portable
