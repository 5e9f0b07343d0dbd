// SPDX-License-Identifier: Apache-2.0
// Second pass of the backward: a unit owns keys and values, walks over the queries that see them
// and sums dK and dV over all query heads of their group in scratch.
#pragma once

#include "tiles.hpp"

namespace cadenza::kernels::portable {

template <typename Real>
struct KeyGradientPass {
  static constexpr int kPitch = pitch(kKeyTile);

  /// Queries of one task and one head against the unit's keys.
  struct QueryStep {
    Band band;
    Range keys;              ///< tokens of the task inside the unit's tile
    std::int64_t begin = 0;  ///< first query
    int queries = 0;
  };

  Problem<Real> problem;
  int scratch_size = 0;
  int scratch_level = 0;
  int keys = 0;    ///< columns [dim, key tile]
  int values = 0;  ///< columns [dim, key tile]
  int dk = 0;      ///< rows [key tile, dim]
  int dv = 0;      ///< rows [key tile, dim]
  // Per step:
  int queries = 0;  ///< rows [query tile, dim], rotated and scaled
  int dout = 0;     ///< rows [query tile, dim]
  int lse = 0;      ///< [query tile]; +inf for a row without keys
  int delta = 0;    ///< [query tile]
  int scores = 0;   ///< [query tile, key tile] logits, then probabilities
  int dscores = 0;  ///< [query tile, key tile] gradients of the probabilities, then of the logits

  explicit KeyGradientPass(const Problem<Real>& of) : problem(of) {
    ScratchPlan plan;
    keys = plan.matrix(problem.dim, kPitch);
    values = plan.matrix(problem.dim, kPitch);
    dk = plan.matrix(kKeyTile, problem.dim_pitch);
    dv = plan.matrix(kKeyTile, problem.dim_pitch);
    queries = plan.matrix(kQueryTile, problem.dim_pitch);
    dout = plan.matrix(kQueryTile, problem.dim_pitch);
    lse = plan.vector(kQueryTile);
    delta = plan.vector(kQueryTile);
    scores = plan.matrix(kQueryTile, kPitch);
    dscores = plan.matrix(kQueryTile, kPitch);
    scratch_size = plan.size();
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const Unit unit = problem.units(team.league_rank());
    Real* scratch = scratch_of<Real>(team, scratch_level, scratch_size);
    const KeyRows<Real> buffer = problem.keys(unit.buffer);
    const int rows = static_cast<int>(unit.end - unit.begin);
    const int dim = problem.dim;
    const HeadPlace place = place_of(buffer, problem.kv_heads, unit.begin, rows, unit.kv_head);
    load_columns(team, head_rows(buffer.k, place, dim), dim, scratch + keys, kPitch);
    load_columns(team, head_rows(buffer.v, place, dim), dim, scratch + values, kPitch);
    fill(team, scratch + dk, kKeyTile * problem.dim_pitch, Real(0));
    fill(team, scratch + dv, kKeyTile * problem.dim_pitch, Real(0));
    team.team_barrier();
    std::size_t tiles = 0;
    for (int entry = unit.first_entry; entry < unit.last_entry; ++entry) {
      differentiate(team, unit, problem.tasks(problem.entries(entry)), scratch, tiles);
    }
    add_sums(team, unit, scratch);
  }

  /// Adds the sums in scratch to memory and starts new ones.
  KOKKOS_FUNCTION void add_sums(const Member& team, const Unit& unit, Real* scratch) const {
    const KeyRows<Real> buffer = problem.keys(unit.buffer);
    const int rows = static_cast<int>(unit.end - unit.begin);
    const int dim = problem.dim;
    const HeadPlace place = place_of(buffer, problem.kv_heads, unit.begin, rows, unit.kv_head);
    add_rows(team, scratch + dk, problem.dim_pitch, dim, head_rows(buffer.dk, place, dim));
    add_rows(team, scratch + dv, problem.dim_pitch, dim, head_rows(buffer.dv, place, dim));
    team.team_barrier();
    fill(team, scratch + dk, kKeyTile * problem.dim_pitch, Real(0));
    fill(team, scratch + dv, kKeyTile * problem.dim_pitch, Real(0));
    team.team_barrier();
  }

  /// Adds one task's gradients. `tiles`: tiles of queries that the unit has taken so far.
  KOKKOS_FUNCTION void differentiate(const Member& team, const Unit& unit, const TaskRows& entry,
                                     Real* scratch, std::size_t& tiles) const {
    const Task& task = entry.task;
    const QueryRows<Real> buffer = problem.queries(entry.query_rows);
    const Range heads = heads_of(unit, task);
    QueryStep step;
    step.band = task.band;
    step.keys.begin = Kokkos::max(task.k.begin, unit.begin);
    step.keys.end = Kokkos::min(task.k.end, unit.end);
    step.begin = Kokkos::max(task.q.begin, step.keys.begin - task.band.high);
    const std::int64_t end = Kokkos::min(task.q.end, step.keys.end - task.band.low);
    for (; step.begin < end; step.begin += kQueryTile) {
      step.queries = static_cast<int>(Kokkos::min<std::int64_t>(kQueryTile, end - step.begin));
      for (std::int64_t head = heads.begin; head < heads.end; ++head) {
        load_step(team, buffer, step, task.q_positions, static_cast<int>(head), scratch);
        add_step(team, unit, step, scratch);
        if (++tiles % kTilesPerSum == 0) add_sums(team, unit, scratch);
      }
    }
  }

  KOKKOS_FUNCTION void load_step(const Member& team, const QueryRows<Real>& buffer,
                                 const QueryStep& step, const PositionMap& map, int head,
                                 Real* scratch) const {
    const int dim = problem.dim;
    const HeadPlace place = place_of(buffer, problem.heads, step.begin, step.queries, head);
    load_queries(team, problem, head_rows(buffer.q, place, dim),
                 table_rows(buffer, step.begin, map, problem.positions), scratch + queries,
                 problem.dim_pitch, 1);
    load_rows(team, head_rows(buffer.dout, place, dim), dim, scratch + dout, problem.dim_pitch);
    load_statistics(team, buffer, place, scratch + lse, scratch + delta);
    team.team_barrier();
  }

  KOKKOS_FUNCTION void add_step(const Member& team, const Unit& unit, const QueryStep& step,
                                Real* scratch) const {
    const int dim = problem.dim;
    const int dim_pitch = problem.dim_pitch;
    const int columns = static_cast<int>(step.keys.end - unit.begin);
    tile_product<Left::rows, Start::zero>(
        team, step.queries, columns, dim,
        Product<Real>{scratch + queries, dim_pitch, scratch + keys, kPitch, scratch + scores,
                      kPitch});
    tile_product<Left::rows, Start::zero>(team, step.queries, columns, dim,
                                          Product<Real>{scratch + dout, dim_pitch, scratch + values,
                                                        kPitch, scratch + dscores, kPitch});
    const int first = static_cast<int>(step.keys.begin - unit.begin);
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, step.queries), [&](int r) {
      const SeenKeys seen =
          seen_in_tile(step.band, step.begin + r, step.keys.begin, columns - first);
      probabilities(first + seen.begin, first + seen.end, columns, scratch + scores + r * kPitch,
                    scratch + dscores + r * kPitch, scratch[lse + r], scratch[delta + r]);
    });
    team.team_barrier();
    tile_product<Left::columns, Start::add>(
        team, columns, dim, step.queries,
        Product<Real>{scratch + scores, kPitch, scratch + dout, dim_pitch, scratch + dv, dim_pitch,
                      nullptr});
    tile_product<Left::columns, Start::add>(
        team, columns, dim, step.queries,
        Product<Real>{scratch + dscores, kPitch, scratch + queries, dim_pitch, scratch + dk,
                      dim_pitch, nullptr});
  }

  /// Computes P = exp(S - lse) and dS = P * (dP - delta) of one query, in place; 0 outside keys
  /// [begin, end).
  KOKKOS_FUNCTION static void probabilities(int begin, int end, int columns, Real* logits, Real* dp,
                                            Real lse, Real delta) {
    const Pack<Real> row_lse = broadcast(lse);
    const Pack<Real> row_delta = broadcast(delta);
    for (int j = 0; j < end; j += kLanes<Real>) {
      const Pack<Real> p = exponential(load(logits + j) - row_lse);
      store(logits + j, p);
      store(dp + j, p * (load(dp + j) - row_delta));
    }
    for (int j = 0; j < begin; ++j) logits[j] = dp[j] = 0;
    for (int j = end; j < round_up(columns, kBlockRows); ++j) logits[j] = dp[j] = 0;
  }
};

}  // namespace cadenza::kernels::portable
