// SPDX-License-Identifier: Apache-2.0
// Division of a call into units: a unit owns a tile of rows for the heads of one key-value head,
// and does the work of all tasks that touch them. No two units write the same element, so results
// need no atomics and do not depend on the number of threads.
#pragma once

#include <atomic>
#include <vector>

#include "cadenza/kernels/attention.hpp"
#include "unit.hpp"

namespace cadenza::kernels {

/// Tiles of queries whose gradients of keys are summed in scratch before they are added to memory:
/// a sum of sums, each of a few tiles, loses little to rounding however many queries there are.
inline constexpr std::size_t kTilesPerSum = 32;

/// Units in the order in which they should start (longest first) and their tasks.
struct UnitList {
  std::vector<Unit> units;
  std::vector<int>
      entries;  ///< indices of tasks; in a unit, those of one map of positions are adjacent
};

/// Hands out units in order, to any thread.
class UnitQueue {
 public:
  explicit UnitQueue(const UnitList& list) : list_(list) {}
  /// Returns the next unit; null: none is left.
  const Unit* next() {
    const std::size_t next = next_.fetch_add(1, std::memory_order_relaxed);
    return next < list_.units.size() ? &list_.units[next] : nullptr;
  }

 private:
  const UnitList& list_;
  std::atomic<std::size_t> next_{0};
};

enum class Side { queries, keys };

struct UnitShape {
  Side side = Side::queries;
  int tile = 1;       ///< rows of a unit
  int max_heads = 1;  ///< query heads of a unit; the rest of a larger group are units of their own
  friend auto operator<=>(const UnitShape&, const UnitShape&) = default;
};

/// Tokens of the buffers of one side.
template <typename Real>
std::vector<Range> buffer_tokens(const TaskList<Real>& list, Side side) {
  std::vector<Range> tokens;
  if (side == Side::queries) {
    for (const auto& rows : list.queries) tokens.push_back(rows.tokens);
  } else {
    for (const auto& rows : list.keys) tokens.push_back(rows.tokens);
  }
  return tokens;
}

/// Makes the units of the tasks' rows on one side. `buffers` are the tokens of that side's buffers.
/// A unit does not contain tasks that see none of its keys; units without work are left out.
UnitList make_units(const AttentionShape& shape, const std::vector<Range>& buffers,
                    const std::vector<TaskRows>& tasks, const UnitShape& unit_shape);

/// Makes the units of a list.
template <typename Real>
UnitList make_units(const AttentionShape& shape, const TaskList<Real>& list,
                    const UnitShape& unit_shape) {
  return make_units(shape, buffer_tokens(list, unit_shape.side), list.tasks, unit_shape);
}

}  // namespace cadenza::kernels
