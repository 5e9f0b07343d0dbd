// SPDX-License-Identifier: Apache-2.0
// Forward core attention with an online softmax over tiles of keys (Milakov & Gimelshein 2018; Dao
// et al. 2022): a unit keeps the running maximum, sum and output of its queries in scratch.
#include <cmath>

#include "attention.hpp"
#include "tiles.hpp"

namespace cadenza::kernels::portable {

template <typename Real>
struct ForwardPass {
  static constexpr int kPitch = pitch(kQueryTile);

  Problem<Real> problem;
  int scratch_size = 0;
  int scratch_level = 0;
  // Per head of the unit:
  int queries = 0;  ///< columns [dim, query tile], rotated and scaled
  int out = 0;      ///< rows [query tile, dim], not divided by the sum yet
  int peak = 0;     ///< [query tile] running maximum of the logits
  int sum = 0;      ///< [query tile] running sum of exp(logit - peak)
  int lost = 0;     ///< [query tile] rounding errors of the sum
  int head_size = 0;
  // Per step:
  int keys = 0;    ///< rows [key tile, dim]
  int values = 0;  ///< rows [key tile, dim]
  int scores = 0;  ///< [key tile, query tile] logits, then probabilities
  int begins = 0;  ///< [query tile] first key that a query sees
  int ends = 0;    ///< [query tile] key behind the last one
  int decay = 0;   ///< [query tile] factor of the older state

  explicit ForwardPass(const Problem<Real>& of) : problem(of) {
    ScratchPlan head;
    queries = head.matrix(problem.dim, kPitch);
    out = head.matrix(kQueryTile, problem.dim_pitch);
    peak = head.vector(kQueryTile);
    sum = head.vector(kQueryTile);
    lost = head.vector(kQueryTile);
    head_size = head.size();
    ScratchPlan plan;
    plan.vector(head_size * std::min(problem.group, kMaxGroupHeads));
    keys = plan.matrix(kKeyTile, problem.dim_pitch);
    values = plan.matrix(kKeyTile, problem.dim_pitch);
    scores = plan.matrix(kKeyTile, kPitch);
    begins = plan.vector(kQueryTile);
    ends = plan.vector(kQueryTile);
    decay = plan.vector(kQueryTile);
    scratch_size = plan.size();
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const Unit unit = problem.units(team.league_rank());
    Real* scratch = scratch_of<Real>(team, scratch_level, scratch_size);
    for (int head = unit.head_begin; head < unit.head_end; ++head) {
      load_state(team, unit, head, scratch + (head - unit.head_begin) * head_size);
    }
    for (int entry = unit.first_entry; entry < unit.last_entry; ++entry) {
      const TaskRows& rows = problem.tasks(problem.entries(entry));
      if (entry == unit.first_entry || !same_positions(rows.task.q_positions, before(entry))) {
        rotate(team, unit, rows.task.q_positions, scratch);
      }
      attend(team, unit, rows, scratch);
    }
    for (int head = unit.head_begin; head < unit.head_end; ++head) {
      store_state(team, unit, head, scratch + (head - unit.head_begin) * head_size);
    }
  }

  /// Returns the map of the previous entry.
  KOKKOS_FUNCTION const PositionMap& before(int entry) const {
    return problem.tasks(problem.entries(entry - 1)).task.q_positions;
  }

  KOKKOS_FUNCTION void rotate(const Member& team, const Unit& unit, const PositionMap& map,
                              Real* scratch) const {
    const QueryRows<Real> buffer = problem.queries(unit.buffer);
    const int rows = static_cast<int>(unit.end - unit.begin);
    for (int head = unit.head_begin; head < unit.head_end; ++head) {
      const HeadPlace place = place_of(buffer, problem.heads, unit.begin, rows, head);
      load_queries(team, problem, head_rows(buffer.q, place, problem.dim),
                   table_rows(buffer, unit.begin, map, problem.positions),
                   scratch + (head - unit.head_begin) * head_size + queries, 1, kPitch);
    }
    team.team_barrier();
  }

  KOKKOS_FUNCTION void load_state(const Member& team, const Unit& unit, int head,
                                  Real* state) const {
    const QueryRows<Real> buffer = problem.queries(unit.buffer);
    const int rows = static_cast<int>(unit.end - unit.begin);
    const int dim = problem.dim;
    const HeadPlace place = place_of(buffer, problem.heads, unit.begin, rows, head);
    const int padded = round_up(dim, kBlockColumns<Real>);
    const HeadRows<Real> given = head_rows(buffer.out, place, dim);
    const Real* lse = buffer.lse + place.first;
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, kQueryTile), [&](int r) {
      const Real none = -Kokkos::Experimental::infinity_v<Real>;
      const Real start = r < rows ? lse[r * place.stride] : none;
      const bool empty = start == none;
      state[peak + r] = start;
      state[sum + r] = empty ? 0 : 1;
      state[lost + r] = 0;
      Real* to = state + out + r * problem.dim_pitch;
      const Real* from = given.data + r * given.stride;
      for (int d = 0; d < padded; ++d) to[d] = empty || d >= dim ? 0 : from[d];
    });
    team.team_barrier();
  }

  KOKKOS_FUNCTION void attend(const Member& team, const Unit& unit, const TaskRows& entry,
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

  /// Adds one tile of keys to the state of one head.
  KOKKOS_FUNCTION void add_step(const Member& team, const KeyStep& step, Real* scratch,
                                Real* state) const {
    const int row = step.first_row;
    const int rows = step.last_row - row;
    const int dim = problem.dim;
    tile_product<Left::rows, Start::zero>(
        team, step.keys, rows, dim,
        Product<Real>{scratch + keys, problem.dim_pitch, state + queries + row, kPitch,
                      scratch + scores + row, kPitch});
    const int packs = packs_of_blocks<Real>(rows);
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, packs), [&](int pack) {
      const int r = row + pack * kLanes<Real>;
      softmax_step(step.keys, scratch + scores + r, load(scratch + begins + r),
                   load(scratch + ends + r), state + peak + r, scratch + decay + r, state + sum + r,
                   state + lost + r);
    });
    team.team_barrier();
    tile_product<Left::columns, Start::scaled>(
        team, rows, dim, step.keys,
        Product<Real>{scratch + scores + row, kPitch, scratch + values, problem.dim_pitch,
                      state + out + row * problem.dim_pitch, problem.dim_pitch,
                      scratch + decay + row});
  }

  /// Turns logits into probabilities for a pack of queries. A row that sees no key keeps its state:
  /// its decay is exactly 1 or, if its state is still empty, multiplies zeros.
  KOKKOS_FUNCTION static void softmax_step(int count, Real* logits, Pack<Real> begin,
                                           Pack<Real> end, Real* peaks, Real* decays, Real* sums,
                                           Real* lost) {
    const Pack<Real> none = broadcast(-Kokkos::Experimental::infinity_v<Real>);
    const Pack<Real> zero = broadcast(Real(0));
    const Pack<Real> before = load(peaks);
    // A row that sees a key has a maximum, also if its logits overflow to -inf.
    const Pack<Real> least = broadcast(-Kokkos::Experimental::finite_max_v<Real>);
    Pack<Real> highest =
        select_less<Real>(begin, end, select_less<Real>(before, least, least, before), before);
    for (int j = 0; j < count; ++j) {
      const Pack<Real> key = broadcast(static_cast<Real>(j));
      const Pack<Real> logit = select_seen<Real>(key, begin, end, load(logits + j * kPitch), none);
      highest = select_less<Real>(highest, logit, logit, highest);
    }
    const Pack<Real> shift =
        select_less<Real>(none, highest, highest, zero);  // never (-inf) - (-inf)
    const Pack<Real> decay = exponential(before - shift);
    Pack<Real> added = zero;
    for (int j = 0; j < count; ++j) {
      const Pack<Real> p = exponential(load(logits + j * kPitch) - shift);
      const Pack<Real> key = broadcast(static_cast<Real>(j));
      const Pack<Real> seen_p = select_seen<Real>(key, begin, end, p, zero);
      added = added + seen_p;
      store(logits + j * kPitch, seen_p);
    }
    store(peaks, highest);
    store(decays, decay);
    const Pack<Real> old = load(sums) * decay;
    const Pack<Real> addend = load(lost) * decay + added;
    const Pack<Real> total = old + addend;
    const Pack<Real> taken = total - old;  // part of addend; the rest is lost (Knuth's two-sum)
    store(lost, (old - (total - taken)) + (addend - taken));
    store(sums, total);
  }

  KOKKOS_FUNCTION void store_state(const Member& team, const Unit& unit, int head,
                                   const Real* state) const {
    const QueryRows<Real> buffer = problem.queries(unit.buffer);
    const int rows = static_cast<int>(unit.end - unit.begin);
    const int dim = problem.dim;
    const HeadPlace place = place_of(buffer, problem.heads, unit.begin, rows, head);
    const HeadRows<Real> result = head_rows(buffer.out, place, dim);
    Real* lse = buffer.lse + place.first;
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, rows), [&](int r) {
      const Real total = state[sum + r] + state[lost + r];
      const Real highest = state[peak + r];
      // No key was seen, neither before nor now.
      if (highest == -Kokkos::Experimental::infinity_v<Real> && total == 0) return;
      const Real* from = state + out + r * problem.dim_pitch;
      Real* to = result.data + r * result.stride;
      const Real weight = 1 / total;
      for (int d = 0; d < dim; ++d) to[d] = from[d] * weight;
      // If all logits are -inf (an overflow), there is no softmax.
      lse[r * place.stride] =
          total > 0 ? highest + Kokkos::log(total) : Kokkos::Experimental::quiet_NaN_v<Real>;
    });
  }
};

template <typename Real>
void attention_forward(const AttentionShape& shape, const RotaryTable<Real>& rotary,
                       const TaskList<Real>& list) {
  KeptProblem<Real>& kept = kept_problem(shape, rotary, list);
  const UnitShape queries{Side::queries, kQueryTile, kMaxGroupHeads};
  run_units<Real>("attention_forward", ForwardPass<Real>(kept.problem(shape, list, queries)));
}

template void attention_forward<float>(const AttentionShape&, const RotaryTable<float>&,
                                       const TaskList<float>&);
template void attention_forward<double>(const AttentionShape&, const RotaryTable<double>&,
                                        const TaskList<double>&);

}  // namespace cadenza::kernels::portable
