// SPDX-License-Identifier: Apache-2.0
// First pass of the backward: a unit owns queries, recomputes their probabilities against every
// tile of keys they see and sums dQ in scratch.
#pragma once

#include "tiles.hpp"

namespace cadenza::kernels::portable {

template <typename Real>
struct QueryGradientPass {
  static constexpr int kPitch = pitch(kQueryTile);

  Problem<Real> problem;
  int scratch_size = 0;
  int scratch_level = 0;
  // Per head of the unit:
  int queries = 0;  ///< columns [dim, query tile], rotated and scaled
  int dout = 0;     ///< columns [dim, query tile]
  int dq = 0;       ///< rows [query tile, dim], of the rotated and scaled queries
  int lse = 0;      ///< [query tile]; +inf for a row without keys: its probabilities are 0
  int delta = 0;    ///< [query tile]
  int head_size = 0;
  // Per step:
  int keys = 0;     ///< rows [key tile, dim]
  int values = 0;   ///< rows [key tile, dim]
  int scores = 0;   ///< [key tile, query tile] logits, then their gradients
  int dscores = 0;  ///< [key tile, query tile] gradients of the probabilities
  int begins = 0;   ///< [query tile] first key that a query sees
  int ends = 0;     ///< [query tile] key behind the last one

  explicit QueryGradientPass(const Problem<Real>& of) : problem(of) {
    ScratchPlan head;
    queries = head.matrix(problem.dim, kPitch);
    dout = head.matrix(problem.dim, kPitch);
    dq = head.matrix(kQueryTile, problem.dim_pitch);
    lse = head.vector(kQueryTile);
    delta = head.vector(kQueryTile);
    head_size = head.size();
    ScratchPlan plan;
    plan.vector(head_size * std::min(problem.group, kMaxGroupHeads));
    keys = plan.matrix(kKeyTile, problem.dim_pitch);
    values = plan.matrix(kKeyTile, problem.dim_pitch);
    scores = plan.matrix(kKeyTile, kPitch);
    dscores = plan.matrix(kKeyTile, kPitch);
    begins = plan.vector(kQueryTile);
    ends = plan.vector(kQueryTile);
    scratch_size = plan.size();
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const Unit unit = problem.units(team.league_rank());
    Real* scratch = scratch_of<Real>(team, scratch_level, scratch_size);
    // Scratch holds queries and dQ of one map of positions at a time.
    for (int first = unit.first_entry, last = first; first < unit.last_entry; first = last) {
      const PositionMap map = positions_of(first);
      for (int head = unit.head_begin; head < unit.head_end; ++head) {
        load_head(team, unit, head, map, scratch + (head - unit.head_begin) * head_size);
      }
      team.team_barrier();
      for (; last < unit.last_entry && same_positions(map, positions_of(last)); ++last) {
        differentiate(team, unit, problem.tasks(problem.entries(last)), scratch);
      }
      add_gradients(team, unit, map, scratch);
    }
  }

  KOKKOS_FUNCTION const PositionMap& positions_of(int entry) const {
    return problem.tasks(problem.entries(entry)).task.q_positions;
  }

  KOKKOS_FUNCTION void add_gradients(const Member& team, const Unit& unit, const PositionMap& map,
                                     Real* scratch) const {
    const QueryRows<Real> buffer = problem.queries(unit.buffer);
    const int rows = static_cast<int>(unit.end - unit.begin);
    for (int head = unit.head_begin; head < unit.head_end; ++head) {
      const HeadPlace place = place_of(buffer, problem.heads, unit.begin, rows, head);
      const Real* sum = scratch + (head - unit.head_begin) * head_size + dq;
      add_query_gradient(team, problem, sum, problem.dim_pitch,
                         head_rows(buffer.dq, place, problem.dim),
                         table_rows(buffer, unit.begin, map, problem.positions));
    }
    team.team_barrier();
  }

  KOKKOS_FUNCTION void load_head(const Member& team, const Unit& unit, int head,
                                 const PositionMap& map, Real* state) const {
    const QueryRows<Real> buffer = problem.queries(unit.buffer);
    const int rows = static_cast<int>(unit.end - unit.begin);
    const int dim = problem.dim;
    const HeadPlace place = place_of(buffer, problem.heads, unit.begin, rows, head);
    load_queries(team, problem, head_rows(buffer.q, place, dim),
                 table_rows(buffer, unit.begin, map, problem.positions), state + queries, 1,
                 kPitch);
    load_columns(team, head_rows(buffer.dout, place, dim), dim, state + dout, kPitch);
    load_statistics(team, buffer, place, state + lse, state + delta);
    fill(team, state + dq, kQueryTile * problem.dim_pitch, Real(0));
  }

  KOKKOS_FUNCTION void differentiate(const Member& team, const Unit& unit, const TaskRows& entry,
                                     Real* scratch) const {
    const KeyRows<Real> buffer = problem.keys(entry.key_rows);
    const Range heads = heads_of(unit, entry.task);
    if (heads.begin >= heads.end) return;
    const int dim = problem.dim;
    for_each_key_step<Real>(unit, entry.task, [&](const KeyStep& step) {
      const HeadPlace place =
          place_of(buffer, problem.kv_heads, step.begin, step.keys, unit.kv_head);
      load_rows(team, head_rows(buffer.k, place, dim), dim, scratch + keys, problem.dim_pitch);
      load_rows(team, head_rows(buffer.v, place, dim), dim, scratch + values, problem.dim_pitch);
      find_seen(team, unit, step, scratch + begins, scratch + ends);
      team.team_barrier();
      for (std::int64_t head = heads.begin; head < heads.end; ++head) {
        add_step(team, step, scratch, scratch + (head - unit.head_begin) * head_size);
      }
    });
  }

  KOKKOS_FUNCTION void add_step(const Member& team, const KeyStep& step, Real* scratch,
                                Real* state) const {
    const int row = step.first_row;
    const int rows = step.last_row - row;
    const int dim = problem.dim;
    const int dim_pitch = problem.dim_pitch;
    tile_product<Left::rows, Start::zero>(
        team, step.keys, rows, dim,
        Product<Real>{scratch + keys, dim_pitch, state + queries + row, kPitch,
                      scratch + scores + row, kPitch});
    tile_product<Left::rows, Start::zero>(
        team, step.keys, rows, dim,
        Product<Real>{scratch + values, dim_pitch, state + dout + row, kPitch,
                      scratch + dscores + row, kPitch});
    const int packs = packs_of_blocks<Real>(rows);
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, packs), [&](int pack) {
      const int r = row + pack * kLanes<Real>;
      score_gradient(step.keys, scratch + scores + r, scratch + dscores + r,
                     load(scratch + begins + r), load(scratch + ends + r), load(state + lse + r),
                     load(state + delta + r));
    });
    team.team_barrier();
    tile_product<Left::columns, Start::add>(
        team, rows, dim, step.keys,
        Product<Real>{scratch + scores + row, kPitch, scratch + keys, dim_pitch,
                      state + dq + row * dim_pitch, dim_pitch, nullptr});
  }

  /// Computes dS = P * (dP - delta) with P = exp(S - lse), for a pack of queries, in place of the
  /// logits.
  KOKKOS_FUNCTION static void score_gradient(int count, Real* logits, const Real* dp,
                                             Pack<Real> begin, Pack<Real> end, Pack<Real> lse,
                                             Pack<Real> delta) {
    const Pack<Real> zero = broadcast(Real(0));
    for (int j = 0; j < count; ++j) {
      const Pack<Real> p = exponential(load(logits + j * kPitch) - lse);
      const Pack<Real> gradient = p * (load(dp + j * kPitch) - delta);
      const Pack<Real> key = broadcast(static_cast<Real>(j));
      store(logits + j * kPitch, select_seen<Real>(key, begin, end, gradient, zero));
    }
  }
};

}  // namespace cadenza::kernels::portable
