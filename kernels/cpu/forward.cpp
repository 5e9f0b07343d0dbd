// SPDX-License-Identifier: Apache-2.0
// Forward: a unit owns a tile of queries for some heads of a group and walks over the keys of all
// its tasks. It loads each tile of keys once for these heads.
#include <algorithm>
#include <limits>

#include "forward_tiles.hpp"
#include "progress.hpp"
#include "thread_state.hpp"

namespace cadenza::kernels::cpu {
namespace {

template <typename Real>
class Forward {
 public:
  Forward(const TileKernels& kernels, const AttentionShape& shape, const RotaryTable<float>& rotary,
          const TaskList<Real>& list, const UnitList& units)
      : tiles_(kernels, shape, rotary, list),
        list_(list),
        units_(units),
        progress_(list.progress),
        queue_(units) {}

  ForwardScratch plan(Scratch& scratch) const {
    return plan_forward(scratch, tiles_.kernels(), tiles_.dim());
  }

  void run(Scratch scratch) {
    const ThreadState state(tiles_.kernels());
    const ForwardScratch tiles = plan(scratch);
    while (const Unit* unit = queue_.next()) run_unit(*unit, tiles);
  }

 private:
  void run_unit(const Unit& unit, const ForwardScratch& plan) {
    tiles_.begin(unit, plan);
    const PositionMap* loaded = nullptr;
    for (int first = unit.first_entry, last = first; first < unit.last_entry; first = last) {
      const PositionMap& map = task_of(first).task.q_positions;
      if (loaded == nullptr || *loaded != map) tiles_.load(unit, map, plan);
      loaded = &map;
      while (last < unit.last_entry && same_loads(task_of(first), task_of(last))) ++last;
      attend(unit, first, last, plan);
    }
    tiles_.end(unit, plan);
  }

  const TaskRows& task_of(int entry) const {
    const int task = units_.entries[static_cast<std::size_t>(entry)];
    return list_.tasks[static_cast<std::size_t>(task)];
  }

  /// Whether two tasks have the same tiles of keys, as far as both reach, and the same rotated
  /// queries.
  static bool same_loads(const TaskRows& a, const TaskRows& b) {
    return a.key_rows == b.key_rows && a.task.k.begin == b.task.k.begin &&
           a.task.q_positions == b.task.q_positions;
  }

  /// Keys that tasks [first, last), which begin at the same key, see in the unit; begins with a
  /// tile.
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

  /// Attends to the unit's part of tasks that begin at the same key; loads each tile once for all.
  void attend(const Unit& unit, int first, int last, const ForwardScratch& plan) {
    const TaskRows& any = task_of(first);
    const KeyRows<Real>& buffer = list_.keys[static_cast<std::size_t>(any.key_rows)];
    const Range seen = keys_of(unit, first, last);
    const std::int64_t end = seen.end;
    for (std::int64_t begin = seen.begin; begin < end; begin += kKeyTile) {
      const Range keys{begin, std::min(end, begin + kKeyTile)};
      tiles_.kernels().forward_load(plan.keys, tiles_.dim(),
                                    tiles_.rows().of_head(buffer, buffer.k, keys, unit.kv_head),
                                    tiles_.rows().of_head(buffer, buffer.v, keys, unit.kv_head));
      Upcoming next =
          upcoming(buffer, {keys.end, std::min(end, keys.end + kKeyTile)}, unit.kv_head);
      for (int entry = first; entry < last; ++entry) {
        add_keys(unit, task_of(entry).task, keys, plan, next);
      }
      progress_.step();
    }
  }

  /// Adds a loaded tile of keys to the part of a task in the unit.
  void add_keys(const Unit& unit, const Task& task, Range tile, const ForwardScratch& plan,
                Upcoming& next) const {
    const Range queries = intersect(task.q, {unit.begin, unit.end});
    const Range seen = seen_keys(queries, task.k, task.band);
    const Range keys{tile.begin, std::min(tile.end, seen.end)};
    if (keys.end <= std::max(keys.begin, seen.begin)) return;
    tiles_.for_each(unit, plan, [&](Range tokens, int head, const ForwardHead& state) {
      const Range part = intersect(queries, tokens);
      if (head < task.heads.begin || head >= task.heads.end) return;
      if (part.empty() || seen_keys(part, keys, task.band).empty()) return;
      const Visible visible = visible_keys_of(task, part, tokens.begin, keys);
      tiles_.kernels().forward_step(state, plan.keys, tiles_.dim(), tiles_.scale(), visible, next);
      next = {};
    });
  }

  Upcoming upcoming(const KeyRows<Real>& buffer, Range keys, int head) const {
    Upcoming rows;
    if (keys.empty()) return rows;
    constexpr int kBytes = static_cast<int>(sizeof(Real));
    for (const Real* what : {buffer.k, buffer.v}) {
      const Rows next = tiles_.rows().of_head(buffer, what, keys, head);
      rows.add(next.data, next.stride, next.count, tiles_.dim(), kBytes);
    }
    return rows;
  }

  ForwardTiles<Real> tiles_;
  const TaskList<Real>& list_;
  const UnitList& units_;
  Progress progress_;
  UnitQueue queue_;
};

}  // namespace

template <typename Real>
void attention_forward(const TileKernels& kernels, const AttentionShape& shape,
                       const RotaryTable<float>& rotary, const TaskList<Real>& list,
                       int most_threads) {
  const int heads = std::min(shape.group(), kMaxTiles);
  const int tiles = tiles_per_unit(list, heads, shape.heads, thread_count(most_threads));
  const UnitList units = make_units(shape, list, {Side::queries, tiles * kQueryTile, heads});
  Forward<Real> forward(kernels, shape, rotary, list, units);
  run_pass("attention_forward", forward, units.units.size(), most_threads);
}

template void attention_forward<float>(const TileKernels&, const AttentionShape&,
                                       const RotaryTable<float>&, const TaskList<float>&, int);
template void attention_forward<bfloat16>(const TileKernels&, const AttentionShape&,
                                          const RotaryTable<float>&, const TaskList<bfloat16>&,
                                          int);

}  // namespace cadenza::kernels::cpu
