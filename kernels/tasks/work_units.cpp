// SPDX-License-Identifier: Apache-2.0
#include "work_units.hpp"

#include <algorithm>
#include <map>
#include <numeric>

namespace cadenza::kernels {
namespace {

/// Every possible unit, by buffer, tile, key-value head and chunk of its group.
class Grid {
 public:
  Grid(const AttentionShape& shape, const std::vector<Range>& buffers, const UnitShape& unit)
      : group_(shape.group()),
        kv_heads_(shape.kv_heads),
        chunks_((shape.group() + unit.max_heads - 1) / unit.max_heads),
        unit_(unit),
        buffers_(buffers) {
    for (const Range& tokens : buffers) {
      first_.push_back(size_);
      size_ += (std::max<std::int64_t>(0, tokens.size()) + unit.tile - 1) / unit.tile * per_tile();
    }
  }
  std::int64_t size() const { return size_; }

  /// Calls visit(slot, unit, allowed pairs over heads) for the parts of `entry`.
  template <typename Visit>
  void for_each_part(const TaskRows& entry, Visit&& visit) const {
    const bool by_queries = unit_.side == Side::queries;
    const int buffer = by_queries ? entry.query_rows : entry.key_rows;
    const Range tokens = buffers_[static_cast<std::size_t>(buffer)];
    const Range span = by_queries ? entry.task.q : entry.task.k;
    const Range other = by_queries ? entry.task.k : entry.task.q;
    if (span.empty() || other.empty() || entry.task.heads.empty()) return;
    const std::int64_t last = (span.end - 1 - tokens.begin) / unit_.tile;
    for (std::int64_t tile = (span.begin - tokens.begin) / unit_.tile; tile <= last; ++tile) {
      Unit unit;
      unit.buffer = buffer;
      unit.begin = tokens.begin + tile * unit_.tile;
      unit.end = std::min(tokens.end, unit.begin + unit_.tile);
      const Range part = intersect(span, {unit.begin, unit.end});
      const Range& queries = by_queries ? part : other;
      const Range& keys = by_queries ? other : part;
      const std::int64_t pairs = allowed_pairs(queries, keys, entry.task.band);
      if (pairs == 0) continue;
      const std::int64_t slot = first_[static_cast<std::size_t>(buffer)] + tile * per_tile();
      for_each_chunk(entry.task.heads, slot, unit, pairs, visit);
    }
  }

 private:
  std::int64_t per_tile() const { return static_cast<std::int64_t>(kv_heads_) * chunks_; }

  template <typename Visit>
  void for_each_chunk(Range heads, std::int64_t slot, Unit unit, std::int64_t pairs,
                      Visit& visit) const {
    for (int kv_head = 0; kv_head < kv_heads_; ++kv_head) {
      for (int chunk = 0; chunk < chunks_; ++chunk, ++slot) {
        const std::int64_t begin = static_cast<std::int64_t>(kv_head) * group_ +
                                   static_cast<std::int64_t>(chunk) * unit_.max_heads;
        const std::int64_t end =
            std::min<std::int64_t>(begin + unit_.max_heads, (kv_head + std::int64_t{1}) * group_);
        const Range common = intersect(heads, {begin, end});
        if (common.empty()) continue;
        unit.kv_head = kv_head;
        unit.head_begin = static_cast<int>(common.begin);
        unit.head_end = static_cast<int>(common.end);
        visit(slot, unit, pairs * common.size());
      }
    }
  }

  int group_;
  int kv_heads_;
  int chunks_;
  UnitShape unit_;
  const std::vector<Range>& buffers_;
  std::vector<std::int64_t> first_;
  std::int64_t size_ = 0;
};

/// Returns, by task, the first task with the same map of positions.
std::vector<int> first_of_map(const std::vector<TaskRows>& tasks) {
  std::map<PositionMap, int> seen;
  std::vector<int> first;
  for (const TaskRows& entry : tasks) {
    first.push_back(seen.try_emplace(entry.task.q_positions, std::ssize(first)).first->second);
  }
  return first;
}

/// Makes the tasks of one map adjacent in every unit, in the order of the maps' first tasks.
void group_maps(const std::vector<TaskRows>& tasks, const std::vector<Unit>& units,
                std::vector<int>& entries) {
  const bool one = std::ranges::all_of(tasks, [&](const TaskRows& entry) {
    return entry.task.q_positions == tasks.front().task.q_positions;
  });
  if (one) return;
  const std::vector<int> first = first_of_map(tasks);
  for (const Unit& unit : units) {
    std::ranges::stable_sort(entries.begin() + unit.first_entry, entries.begin() + unit.last_entry,
                             {}, [&](int task) { return first[static_cast<std::size_t>(task)]; });
  }
}

}  // namespace

UnitList make_units(const AttentionShape& shape, const std::vector<Range>& buffers,
                    const std::vector<TaskRows>& tasks, const UnitShape& unit_shape) {
  const Grid grid(shape, buffers, unit_shape);
  std::vector<int> place(static_cast<std::size_t>(grid.size()), -1);  // slot -> index in units
  std::vector<Unit> units;
  std::vector<std::int64_t> cost;
  for (const TaskRows& task : tasks) {
    grid.for_each_part(task, [&](std::int64_t slot, const Unit& part, std::int64_t pairs) {
      int& index = place[static_cast<std::size_t>(slot)];
      if (index < 0) {
        index = static_cast<int>(units.size());
        units.push_back(part);
        cost.push_back(0);
      }
      Unit& unit = units[static_cast<std::size_t>(index)];
      unit.head_begin = std::min(unit.head_begin, part.head_begin);
      unit.head_end = std::max(unit.head_end, part.head_end);
      ++unit.last_entry;  // the number of entries for now
      cost[static_cast<std::size_t>(index)] += pairs;
    });
  }
  int total = 0;
  for (Unit& unit : units) {
    unit.first_entry = total;
    total += unit.last_entry;
    unit.last_entry = unit.first_entry;
  }
  UnitList list;
  list.entries.resize(static_cast<std::size_t>(total));
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    grid.for_each_part(tasks[t], [&](std::int64_t slot, const Unit&, std::int64_t) {
      Unit& unit = units[static_cast<std::size_t>(place[static_cast<std::size_t>(slot)])];
      list.entries[static_cast<std::size_t>(unit.last_entry++)] = static_cast<int>(t);
    });
  }
  group_maps(tasks, units, list.entries);
  std::vector<std::size_t> order(units.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return cost[a] > cost[b]; });
  list.units.reserve(units.size());
  for (const std::size_t index : order) list.units.push_back(units[index]);
  return list;
}

}  // namespace cadenza::kernels
