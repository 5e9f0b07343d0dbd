// SPDX-License-Identifier: Apache-2.0
// Backward: a unit owns a tile of keys of one key-value head, sums dK and dV in scratch while it
// walks over the queries that see them, and adds to their dQ. Other units add to it too, in the
// order of the units (ordered_accumulation.hpp).
#include <algorithm>
#include <cmath>
#include <mutex>

#include "../tasks/work_units.hpp"
#include "attention.hpp"
#include "backward_tiles.hpp"
#include "ordered_accumulation.hpp"
#include "progress.hpp"
#include "rows.hpp"
#include "thread_state.hpp"
#include "workspace.hpp"

namespace cadenza::kernels::cpu {
namespace {

template <typename Real>
class Backward {
 public:
  Backward(const TileKernels& kernels, const AttentionShape& shape,
           const RotaryTable<float>& rotary, const TaskList<Real>& list, const UnitList& units)
      : kernels_(kernels),
        rows_(shape, rotary),
        dim_(shape.head_dim),
        scale_(static_cast<float>(1.0 / std::sqrt(double(shape.head_dim)))),
        list_(list),
        units_(units),
        tile_(kernels.gradient_queries),
        slots_(buffer_tokens(list, Side::queries), kernels.gradient_queries, shape.heads),
        turns_(slots_.size()),
        progress_(list.progress) {}

  BackwardScratch plan(Scratch& scratch) const { return plan_backward(scratch, kernels_, dim_); }

  void run(Scratch scratch) {
    const ThreadState state(kernels_);
    const BackwardScratch tiles = plan(scratch);
    std::vector<Visit> visits;
    for (;;) {
      const Unit* unit = claim(visits);
      if (unit == nullptr) return;
      run_unit(*unit, visits, tiles);
    }
  }

 private:
  /// Queries of one task in one tile and head, and the keys of the unit that they see.
  struct Visit {
    const TaskRows* entry;
    Range tile;     ///< tokens
    Range queries;  ///< tokens
    Range keys;     ///< tokens
    std::int64_t head;
    std::size_t slot;
    std::uint32_t ticket;
  };

  const QueryRows<Real>& queries_of(const Visit& visit) const {
    return list_.queries[static_cast<std::size_t>(visit.entry->query_rows)];
  }

  QueryTile<Real> tile_of(const Visit& visit) const {
    return {queries_of(visit), visit.tile, visit.head, visit.entry->task.q_positions};
  }

  const Unit* claim(std::vector<Visit>& visits) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (next_ >= units_.units.size()) return nullptr;
    const Unit& unit = units_.units[next_++];
    visits.clear();
    for (int at = unit.first_entry; at < unit.last_entry; ++at) {
      const int task = units_.entries[static_cast<std::size_t>(at)];
      add_visits(unit, list_.tasks[static_cast<std::size_t>(task)], visits);
    }
    return &unit;
  }

  void add_visits(const Unit& unit, const TaskRows& entry, std::vector<Visit>& visits) {
    const Task& task = entry.task;
    const Range buffer = list_.queries[static_cast<std::size_t>(entry.query_rows)].tokens;
    const Range keys = intersect(task.k, {unit.begin, unit.end});
    const Range heads = intersect(task.heads, {unit.head_begin, unit.head_end});
    const Range seeing = seeing_queries(task.q, keys, task.band);
    if (keys.empty() || seeing.empty()) return;
    const std::int64_t last = (seeing.end - 1 - buffer.begin) / tile_;
    std::int64_t index = (seeing.begin - buffer.begin) / tile_;
    for (; index <= last; ++index) {
      const std::int64_t begin = buffer.begin + index * tile_;
      const Range tile{begin, std::min(buffer.end, begin + tile_)};
      for (std::int64_t head = heads.begin; head < heads.end; ++head) {
        const std::size_t slot = slots_.of(entry.query_rows, index, head);
        visits.push_back(
            {&entry, tile, intersect(seeing, tile), keys, head, slot, turns_.draw(slot)});
      }
    }
  }

  void run_unit(const Unit& unit, const std::vector<Visit>& visits, const BackwardScratch& plan) {
    const KeyRows<Real>& buffer = list_.keys[static_cast<std::size_t>(unit.buffer)];
    const Range tokens{unit.begin, unit.end};
    const std::int64_t sums = std::int64_t{kernels_.gradient_keys} * dim_;
    kernels_.backward_load_keys(plan.keys, plan.rows, dim_,
                                rows_.of_head(buffer, buffer.k, tokens, unit.kv_head),
                                rows_.of_head(buffer, buffer.v, tokens, unit.kv_head));
    for (std::size_t first = 0; first < visits.size(); first += kTilesPerSum) {
      std::fill_n(plan.keys.dk, sums, 0.0f);
      std::fill_n(plan.keys.dv, sums, 0.0f);
      const std::size_t last = std::min(visits.size(), first + kTilesPerSum);
      for (std::size_t i = first; i < last; ++i) {
        const Visit& visit = visits[i];
        add_pair(unit, visit, i + 1 < visits.size() ? &visits[i + 1] : nullptr, plan);
        turns_.wait(visit.slot, visit.ticket);
        add_query_gradient(kernels_, rows_, dim_, scale_, tile_of(visit), visit.queries,
                           plan.queries);
        turns_.finish(visit.slot, visit.ticket);
        progress_.step();
      }
      kernels_.backward_end(plan.keys, dim_, scale_,
                            rows_.sums_of_head(buffer, buffer.dk, tokens, unit.kv_head),
                            rows_.sums_of_head(buffer, buffer.dv, tokens, unit.kv_head));
    }
  }

  void add_pair(const Unit& unit, const Visit& visit, const Visit* next,
                const BackwardScratch& plan) const {
    load_queries(kernels_, rows_, dim_, tile_of(visit), plan.queries);
    Visible visible = visible_keys_of(visit.entry->task, visit.queries, visit.tile.begin,
                                      {unit.begin, visit.keys.end});
    visible.skipped = static_cast<int>(visit.keys.begin - unit.begin);
    kernels_.backward_step(plan.keys, plan.queries, dim_, scale_, visible, upcoming(visit, next));
  }

  /// Returns the rows needed after the step: this visit's dQ, and the next one's Q and dO.
  Upcoming upcoming(const Visit& visit, const Visit* next) const {
    Upcoming rows;
    constexpr int kBytes = static_cast<int>(sizeof(Real)), kSumBytes = sizeof(float);
    const QueryRows<Real>& buffer = queries_of(visit);
    const SumRows dq = rows_.sums_of_head(buffer, buffer.dq, visit.queries, visit.head);
    rows.add(dq.data, dq.stride, dq.count, dim_, kSumBytes);
    if (next == nullptr) return rows;
    const QueryRows<Real>& other = queries_of(*next);
    for (const Real* what : {other.q, other.dout}) {
      const Rows piece = rows_.of_head(other, what, next->tile, next->head);
      rows.add(piece.data, piece.stride, piece.count, dim_, kBytes);
    }
    return rows;
  }

  const TileKernels& kernels_;
  HeadRows rows_;
  int dim_;
  float scale_;
  const TaskList<Real>& list_;
  const UnitList& units_;
  std::int64_t tile_;  ///< queries in a tile
  Slots slots_;
  OrderedAccumulation turns_;
  Progress progress_;
  std::mutex mutex_;
  std::size_t next_ = 0;
};

}  // namespace

template <typename Real>
void attention_backward(const TileKernels& kernels, const AttentionShape& shape,
                        const RotaryTable<float>& rotary, const TaskList<Real>& list,
                        int most_threads) {
  const UnitList units =
      make_units(shape, list, {Side::keys, kernels.gradient_keys, shape.group()});
  Backward<Real> backward(kernels, shape, rotary, list, units);
  run_pass("attention_backward", backward, units.units.size(), most_threads);
}

template void attention_backward<float>(const TileKernels&, const AttentionShape&,
                                        const RotaryTable<float>&, const TaskList<float>&, int);
template void attention_backward<bfloat16>(const TileKernels&, const AttentionShape&,
                                           const RotaryTable<float>&, const TaskList<bfloat16>&,
                                           int);

}  // namespace cadenza::kernels::cpu
