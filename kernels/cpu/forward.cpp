// SPDX-License-Identifier: Apache-2.0
// Forward: a unit owns a tile of queries for some heads of a group and walks over the keys of all
// its tasks; a tile of keys is loaded once for these heads.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "../tasks/work_units.hpp"
#include "attention.hpp"
#include "progress.hpp"
#include "rows.hpp"
#include "thread_state.hpp"
#include "workspace.hpp"

namespace cadenza::kernels::cpu {
namespace {

/// Tiles of queries, of one head or of several, that share a load of keys: what they keep fits the
/// second-level cache.
constexpr int kMaxTiles = 4;

struct ForwardScratch {
  ForwardHead tiles[kMaxTiles];
  ForwardKeys keys;
};

ForwardScratch plan_scratch(Scratch& scratch, const TileKernels& kernels, int dim) {
  const std::int64_t words = dim / kernels.depth;
  ForwardScratch plan;
  for (ForwardHead& head : plan.tiles) {
    head.queries = scratch.take(kQueryTile * words);
    head.out = scratch.take(std::int64_t{kQueryTile} * dim);
    head.peak = scratch.take(kQueryTile);
    head.sum = scratch.take(kQueryTile);
    head.lost = scratch.take(kQueryTile);
  }
  ForwardKeys& keys = plan.keys;
  keys.keys = scratch.take(kKeyRows * words);
  keys.values = scratch.take(std::int64_t{kKeyRows} / kernels.depth * dim);
  keys.scores = scratch.take(std::int64_t{2} * kKeyRows * kernels.panel);
  keys.probabilities = kernels.depth == 1
                           ? keys.scores
                           : scratch.take(std::int64_t{kKeyRows} / kernels.depth * kernels.panel);
  keys.rows = scratch.take(kKeyRows * words);
  return plan;
}

template <typename Real>
class Forward {
 public:
  Forward(const TileKernels& kernels, const AttentionShape& shape, const RotaryTable<float>& rotary,
          const TaskList<Real>& list, const UnitList& units)
      : kernels_(kernels),
        rows_(shape, rotary),
        dim_(shape.head_dim),
        scale_(static_cast<float>(1.0 / std::sqrt(double(shape.head_dim)))),
        list_(list),
        units_(units),
        progress_(list.progress) {}

  ForwardScratch plan(Scratch& scratch) const { return plan_scratch(scratch, kernels_, dim_); }

  void run(Scratch scratch) {
    const ThreadState state(kernels_);
    const ForwardScratch tiles = plan(scratch);
    for (;;) {
      const std::size_t next = next_.fetch_add(1, std::memory_order_relaxed);
      if (next >= units_.units.size()) return;
      run_unit(units_.units[next], tiles);
    }
  }

 private:
  /// Calls action(tile tokens, query head, its state) for the tiles of a unit.
  template <typename Action>
  void for_each_tile(const Unit& unit, const ForwardScratch& plan, const Action& action) const {
    int index = 0;
    for (std::int64_t begin = unit.begin; begin < unit.end; begin += kQueryTile) {
      const Range tokens{begin, std::min(unit.end, begin + kQueryTile)};
      for (int head = unit.head_begin; head < unit.head_end; ++head) {
        action(tokens, head, plan.tiles[index++]);
      }
    }
  }

  void run_unit(const Unit& unit, const ForwardScratch& plan) {
    const QueryRows<Real>& queries = list_.queries[static_cast<std::size_t>(unit.buffer)];
    for_each_tile(unit, plan, [&](Range tokens, int head, const ForwardHead& state) {
      kernels_.forward_begin(state, dim_, rows_.sums_of_head(queries, queries.out, tokens, head),
                             rows_.per_head(queries, queries.lse, tokens, head));
    });
    const PositionMap* loaded = nullptr;
    for (int first = unit.first_entry, last = first; first < unit.last_entry; first = last) {
      const PositionMap& map = task_of(first).task.q_positions;
      if (loaded == nullptr || *loaded != map) load_queries(unit, map, plan);
      loaded = &map;
      while (last < unit.last_entry && same_loads(task_of(first), task_of(last))) ++last;
      attend(unit, first, last, plan);
    }
    for_each_tile(unit, plan, [&](Range tokens, int head, const ForwardHead& state) {
      kernels_.forward_end(state, dim_, rows_.sums_of_head(queries, queries.out, tokens, head),
                           rows_.per_head(queries, queries.lse, tokens, head));
    });
  }

  void load_queries(const Unit& unit, const PositionMap& map, const ForwardScratch& plan) const {
    const QueryRows<Real>& queries = list_.queries[static_cast<std::size_t>(unit.buffer)];
    for_each_tile(unit, plan, [&](Range tokens, int head, const ForwardHead& state) {
      kernels_.forward_load_queries(state, plan.keys, dim_,
                                    rows_.of_head(queries, queries.q, tokens, head),
                                    rows_.rotation(queries, tokens.begin, map));
    });
  }

  const TaskRows& task_of(int entry) const {
    const int task = units_.entries[static_cast<std::size_t>(entry)];
    return list_.tasks[static_cast<std::size_t>(task)];
  }

  /// Whether the tiles of keys of two tasks are the same, as far as both go, and their rotated
  /// queries.
  static bool same_loads(const TaskRows& a, const TaskRows& b) {
    return a.key_rows == b.key_rows && a.task.k.begin == b.task.k.begin &&
           a.task.q_positions == b.task.q_positions;
  }

  /// Keys that tasks which begin at the same key see in the unit, from the tile with the first on.
  Range keys_of(const Unit& unit, int first, int last) const {
    const std::int64_t start = task_of(first).task.k.begin;
    Range all{std::numeric_limits<std::int64_t>::max(), start};
    for (int entry = first; entry < last; ++entry) {
      const Task& task = task_of(entry).task;
      const Range queries = intersect(task.q, {unit.begin, unit.end});
      const Range seen = seen_keys(queries, task.k, task.band);
      all = {std::min(all.begin, seen.begin), std::max(all.end, seen.end)};
    }
    all.begin -= (all.begin - start) % kKeyTile;
    return all;
  }

  /// The parts in the unit of tasks that begin at the same key; a tile is loaded once for all.
  void attend(const Unit& unit, int first, int last, const ForwardScratch& plan) {
    const TaskRows& any = task_of(first);
    const KeyRows<Real>& buffer = list_.keys[static_cast<std::size_t>(any.key_rows)];
    const Range seen = keys_of(unit, first, last);
    const std::int64_t end = seen.end;
    for (std::int64_t begin = seen.begin; begin < end; begin += kKeyTile) {
      const Range keys{begin, std::min(end, begin + kKeyTile)};
      kernels_.forward_load(plan.keys, dim_, rows_.of_head(buffer, buffer.k, keys, unit.kv_head),
                            rows_.of_head(buffer, buffer.v, keys, unit.kv_head));
      Upcoming next =
          upcoming(buffer, {keys.end, std::min(end, keys.end + kKeyTile)}, unit.kv_head);
      for (int entry = first; entry < last; ++entry) {
        add_keys(unit, task_of(entry).task, keys, plan, next);
      }
      progress_.step();
    }
  }

  /// Adds a loaded tile of keys to what a task computes in the unit.
  void add_keys(const Unit& unit, const Task& task, Range tile, const ForwardScratch& plan,
                Upcoming& next) const {
    const Range queries = intersect(task.q, {unit.begin, unit.end});
    const Range seen = seen_keys(queries, task.k, task.band);
    const Range keys{tile.begin, std::min(tile.end, seen.end)};
    if (keys.end <= std::max(keys.begin, seen.begin)) return;
    for_each_tile(unit, plan, [&](Range tokens, int head, const ForwardHead& state) {
      const Range part = intersect(queries, tokens);
      if (head < task.heads.begin || head >= task.heads.end) return;
      if (part.empty() || seen_keys(part, keys, task.band).empty()) return;
      const Visible visible = visible_keys_of(task, part, tokens.begin, keys);
      kernels_.forward_step(state, plan.keys, dim_, scale_, visible, next);
      next = {};
    });
  }

  Upcoming upcoming(const KeyRows<Real>& buffer, Range keys, int head) const {
    Upcoming rows;
    if (keys.empty()) return rows;
    constexpr int kBytes = static_cast<int>(sizeof(Real));
    for (const Real* what : {buffer.k, buffer.v}) {
      const Rows next = rows_.of_head(buffer, what, keys, head);
      rows.add(next.data, next.stride, next.count, dim_, kBytes);
    }
    return rows;
  }

  const TileKernels& kernels_;
  HeadRows rows_;
  int dim_;
  float scale_;
  const TaskList<Real>& list_;
  const UnitList& units_;
  Progress progress_;
  std::atomic<std::size_t> next_{0};
};

/// Tiles of a head in a unit: fewer where threads would run out of units. Changes no result.
template <typename Real>
int tiles_per_unit(const TaskList<Real>& list, int unit_heads, int heads, int threads) {
  constexpr std::int64_t kUnitsPerThread = 4;
  std::int64_t tiles = 0;
  for (const TaskRows& entry : list.tasks) {
    tiles += (entry.task.q.size() + kQueryTile - 1) / kQueryTile * heads / unit_heads;
  }
  const std::int64_t wanted = tiles / (kUnitsPerThread * threads);
  return static_cast<int>(std::clamp<std::int64_t>(wanted, 1, kMaxTiles / unit_heads));
}

}  // namespace

template <typename Real>
void attention_forward(const TileKernels& kernels, const AttentionShape& shape,
                       const RotaryTable<float>& rotary, const TaskList<Real>& list,
                       int most_threads) {
  const int heads = std::min(shape.group(), kMaxTiles);
  const int tiles = tiles_per_unit(list, heads, shape.heads, thread_count(most_threads));
  const UnitList units = make_units(shape, buffer_tokens(list, Side::queries), list.tasks,
                                    {Side::queries, tiles * kQueryTile, heads});
  Forward<Real> forward(kernels, shape, rotary, list, units);
  run_pass("attention_forward", forward, units.units.size(), most_threads);
}

template void attention_forward<float>(const TileKernels&, const AttentionShape&,
                                       const RotaryTable<float>&, const TaskList<float>&, int);
template void attention_forward<bfloat16>(const TileKernels&, const AttentionShape&,
                                          const RotaryTable<float>&, const TaskList<bfloat16>&,
                                          int);

}  // namespace cadenza::kernels::cpu
