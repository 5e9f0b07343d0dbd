// SPDX-License-Identifier: Apache-2.0
// State that kernels keep of a task list between calls (TaskList::kept): arrays in the kernels'
// memory, copied only when they differ from the previous call's. Layers of a step differ in
// pointers to rows; tasks and units are made and copied once for all of them.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "cadenza/kernels/attention.hpp"
#include "work_units.hpp"

namespace cadenza::kernels {

/// An array in the kernels' memory, with a copy of its last contents. Memory has Array<T>,
/// allocate<T>(count) and copy(array, items), which no longer needs `items` when it returns.
template <typename T, typename Memory>
class KeptArray {
 public:
  void set(Memory& memory, const std::vector<T>& items) {
    if (items == there_) return;
    if (items.size() != there_.size()) array_ = memory.template allocate<T>(items.size());
    memory.copy(array_, items);
    there_ = items;
  }
  const auto& array() const { return array_; }
  std::size_t size() const { return there_.size(); }

 private:
  typename Memory::template Array<T> array_;
  std::vector<T> there_;
};

/// Units of a list's passes and their entries, made once for each shape of unit.
template <typename Memory>
class KeptUnits {
 public:
  struct Arrays {
    KeptArray<Unit, Memory> units;
    KeptArray<int, Memory> entries;
  };

  /// Forgets the units. Call it when the tasks changed.
  void clear() { arrays_.clear(); }
  template <typename Real>
  const Arrays& of(Memory& memory, const AttentionShape& shape, const TaskList<Real>& list,
                   const UnitShape& unit_shape) {
    const auto [at, added] = arrays_.try_emplace(unit_shape);
    Arrays& arrays = at->second;
    if (added) {
      const UnitList made = make_units(shape, list, unit_shape);
      arrays.units.set(memory, made.units);
      arrays.entries.set(memory, made.entries);
    }
    return arrays;
  }

 private:
  std::map<UnitShape, Arrays> arrays_;
};

/// Everything that determines units and entries: all of a call but its pointers.
template <typename Real>
class ListKey {
 public:
  /// Whether the previous call had the same key; if not, stores this call's.
  /// @param positions  number of positions of the rotary table
  bool is_that_of(const AttentionShape& shape, std::int64_t positions, const TaskList<Real>& list) {
    const auto same_place = [](const Place& place, const auto& rows) {
      return place == Place{rows.tokens, rows.heads, rows.positions};
    };
    if (shape_ == shape && positions_ == positions && tasks_ == list.tasks &&
        std::ranges::equal(queries_, list.queries, same_place) &&
        std::ranges::equal(keys_, list.keys, same_place)) {
      return true;
    }
    shape_ = shape;
    positions_ = positions;
    tasks_ = list.tasks;
    queries_ = places_of(list.queries);
    keys_ = places_of(list.keys);
    return false;
  }

 private:
  struct Place {
    Range tokens;
    Range heads;
    Positions positions;
    friend bool operator==(const Place&, const Place&) = default;
  };
  template <typename Rows>
  static std::vector<Place> places_of(const std::vector<Rows>& buffers) {
    std::vector<Place> places;
    for (const Rows& rows : buffers) places.push_back({rows.tokens, rows.heads, rows.positions});
    return places;
  }

  AttentionShape shape_{.heads = 0, .kv_heads = 0, .head_dim = 0};  // of no call yet
  std::int64_t positions_ = 0;
  std::vector<TaskRows> tasks_;
  std::vector<Place> queries_;
  std::vector<Place> keys_;
};

/// Returns the state that the list keeps for these kernels, made with `memory` the first time.
template <typename Kept, typename Real, typename Memory>
Kept& kept_of(const TaskList<Real>& list, const Memory& memory) {
  if (auto* there = dynamic_cast<Kept*>(list.kept.get())) return *there;
  auto made = std::make_shared<Kept>(memory);
  list.kept = made;
  return *made;
}

}  // namespace cadenza::kernels
