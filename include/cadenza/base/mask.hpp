// SPDX-License-Identifier: Apache-2.0
// The mask of a document: which keys its queries see. Plans, costs and reports ask it; none of them
// knows which mask it is.
#pragma once

#include <array>
#include <vector>

#include "cadenza/base/task.hpp"

namespace cadenza {

/// A part of a mask that is one band of a rectangle, with one map of its queries' positions. Tokens
/// are in the order of the text.
struct Region {
  Range q;
  Range k;
  Band band;
  PositionMap q_positions = {};
};

/// The same for documents of any length. No query sees a later key.
class Mask {
 public:
  /// Causal: every query sees its own key and all before it.
  constexpr Mask() = default;
  /// Every query sees its own key and those before it, `keys` in all: a sliding window.
  static constexpr Mask window(std::int64_t keys) {
    Mask mask;
    mask.band_ = Band::window(keys);
    return mask;
  }

  /// Calls visit(Region) for disjoint rectangles of q x k that hold all pairs that the mask allows
  /// there. A mask is what it does here: all else follows.
  template <typename Visit>
  constexpr void for_each_region(Range q, Range k, Visit&& visit) const {
    visit(Region{q, k, band_});
  }

  /// The tasks of a rectangle: its regions, without rows and columns at their edges that see or
  /// are seen by nothing.
  template <typename Visit>
  constexpr void for_each_task(const Task& rectangle, Visit&& visit) const {
    for_each_region(rectangle.q, rectangle.k, [&](const Region& region) {
      Task task = rectangle;
      task.q = region.q;
      task.k = region.k;
      task.band = region.band;
      task.q_positions = region.q_positions;
      task = trimmed(task);
      if (!task.q.empty() && !task.k.empty()) visit(task);
    });
  }

  /// Query-key pairs of q x k, for one head.
  constexpr std::int64_t pairs(Range q, Range k) const {
    std::int64_t sum = 0;
    for_each_region(
        q, k, [&](const Region& region) { sum += allowed_pairs(region.q, region.k, region.band); });
    return sum;
  }
  /// The same with all keys that the queries see.
  constexpr std::int64_t pairs(Range q) const { return pairs(q, {0, q.end}); }

  /// From the first to the last key of `k` that some query of `q` sees; empty: none is.
  constexpr Range keys(Range q, Range k) const {
    Range seen{k.end, k.begin};
    for_each_task({0, q, k, {}}, [&](const Task& task) {
      seen = {std::min(seen.begin, task.k.begin), std::max(seen.end, task.k.end)};
    });
    return seen.empty() ? Range{} : seen;
  }
  constexpr Range keys(Range q) const { return keys(q, {0, q.end}); }

  /// From the first to the last query of `q` that sees some key of `k`; empty: none does.
  constexpr Range queries(Range q, Range k) const {
    Range seeing{q.end, q.begin};
    for_each_task({0, q, k, {}}, [&](const Task& task) {
      seeing = {std::min(seeing.begin, task.q.begin), std::max(seeing.end, task.q.end)};
    });
    return seeing.empty() ? Range{} : seeing;
  }

  constexpr bool sees(std::int64_t query, std::int64_t key) const {
    return pairs({query, query + 1}, {key, key + 1}) > 0;
  }

  /// Equal masks have equal ones.
  constexpr std::array<std::int64_t, 2> parameters() const { return {band_.low, band_.high}; }
  friend constexpr bool operator==(const Mask&, const Mask&) = default;

 private:
  Band band_ = Band::causal();
};

/// The regions of a document as tasks of no heads.
inline std::vector<Task> regions(const Mask& mask, std::int64_t length) {
  std::vector<Task> tasks;
  mask.for_each_task({0, {0, length}, {0, length}, {}},
                     [&](const Task& task) { tasks.push_back(task); });
  return tasks;
}

}  // namespace cadenza
