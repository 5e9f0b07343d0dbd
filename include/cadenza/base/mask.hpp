// SPDX-License-Identifier: Apache-2.0
// The mask of a document: which keys its queries see. Plans, costs and reports use this interface
// only, so that a new mask changes none of them.
#pragma once

#include <array>
#include <vector>

#include "cadenza/base/task.hpp"

namespace cadenza {

/// A rectangle of a mask on which the mask is one band, with one map of its queries' positions.
/// Tokens are in the order of the text.
struct Region {
  Range q;
  Range k;
  Band band;
  PositionMap q_positions = {};
};

/// Dual chunk attention (arXiv 2402.17463): every query sees its own key and all before it, as in
/// causal attention, but at positions that the model was trained with. Documents are cut into
/// chunks of `stride` tokens. A key's position is its place in its chunk; a query's position is
/// - its place in its chunk, for keys of this chunk (intra-chunk);
/// - that place plus `stride`, at most `cap`, for keys of the previous chunk (successive);
/// - `farthest`, for keys of older chunks (inter-chunk).
/// A document of one chunk is plain causal attention.
struct DualChunk {
  std::int64_t stride = 0;    ///< 0: no dual chunk attention
  std::int64_t cap = 0;       ///< largest position of a query for keys of the previous chunk
  std::int64_t farthest = 0;  ///< position of all queries for keys of older chunks
  friend constexpr bool operator==(const DualChunk&, const DualChunk&) = default;
};

/// A rule for documents of any length. Where queries see later keys (prefix), functions without a
/// key range need the mask of one document, which within() returns.
class Mask {
 public:
  /// Causal: every query sees its own key and all before it.
  constexpr Mask() = default;
  /// Every query sees its own key and those before it, `keys` in all (a sliding window), and the
  /// first `sinks` keys of the document.
  static constexpr Mask window(std::int64_t keys, std::int64_t sinks = 0) {
    Mask mask;
    mask.band_ = Band::window(keys);
    mask.sinks_ = sinks;
    return mask;
  }
  /// The first `tokens` tokens of a document see each other; all later queries are causal.
  static constexpr Mask prefix(std::int64_t tokens) {
    Mask mask;
    mask.prefix_ = tokens;
    return mask;
  }
  static constexpr Mask dual_chunk(const DualChunk& chunks) {
    Mask mask;
    mask.chunks_ = chunks;
    return mask;
  }

  /// The mask of a document of `length` tokens: its prefix ends with the document.
  constexpr Mask within(std::int64_t length) const {
    Mask mask = *this;
    mask.prefix_ = std::min(prefix_, length);
    return mask;
  }

  /// Calls visit(Region) for disjoint rectangles that together hold all allowed pairs of q x k.
  /// This function defines the mask; all others follow from it.
  template <typename Visit>
  constexpr void for_each_region(Range q, Range k, Visit&& visit) const {
    if (chunks_.stride > 0) return for_each_chunk(q, k, visit);
    for_each_band(q, k, [&](Range queries, Range keys, Band band) {
      visit(Region{queries, keys, band});
    });
  }

  /// Calls visit(Task) for the regions of a rectangle, without the rows and columns at their edges
  /// that have no allowed pair.
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

  /// Allowed query-key pairs of q x k, for one head.
  constexpr std::int64_t pairs(Range q, Range k) const {
    std::int64_t sum = 0;
    for_each_band(q, k, [&](Range queries, Range keys, Band band) {
      sum += allowed_pairs(queries, keys, band);
    });
    return sum;
  }
  /// Pairs of the queries with all keys that they see, for one head.
  constexpr std::int64_t pairs(Range q) const { return pairs(q, before_last(q)); }

  /// Calls visit(Range) for the keys of `k` that some query of `q` sees, ascending, disjoint.
  template <typename Visit>
  constexpr void for_each_key_range(Range q, Range k, Visit&& visit) const {
    Range last;
    for_each_band(q, k, [&](Range queries, Range keys, Band band) {
      const Task task = trimmed({0, queries, keys, {}, band});
      if (task.q.empty() || task.k.empty()) return;
      if (!last.empty() && task.k.begin <= last.end) {
        last.end = std::max(last.end, task.k.end);
        return;
      }
      if (!last.empty()) visit(last);
      last = task.k;
    });
    if (!last.empty()) visit(last);
  }
  template <typename Visit>
  constexpr void for_each_key_range(Range q, Visit&& visit) const {
    for_each_key_range(q, before_last(q), visit);
  }

  /// From the first to the last key of `k` that some query of `q` sees; empty if there is none.
  constexpr Range keys(Range q, Range k) const {
    Range seen;
    for_each_key_range(q, k, [&](Range part) {
      seen = {seen.empty() ? part.begin : seen.begin, part.end};
    });
    return seen;
  }
  constexpr Range keys(Range q) const { return keys(q, before_last(q)); }

  /// Number of keys of `k` that some query of `q` sees.
  constexpr std::int64_t key_rows(Range q, Range k) const {
    std::int64_t rows = 0;
    for_each_key_range(q, k, [&](Range part) { rows += part.size(); });
    return rows;
  }

  /// From the first to the last query of `q` that sees some key of `k`; empty if there is none.
  constexpr Range queries(Range q, Range k) const {
    Range seeing{q.end, q.begin};
    for_each_band(q, k, [&](Range queries, Range keys, Band band) {
      const Task task = trimmed({0, queries, keys, {}, band});
      if (task.q.empty() || task.k.empty()) return;
      seeing = {std::min(seeing.begin, task.q.begin), std::max(seeing.end, task.q.end)};
    });
    return seeing.empty() ? Range{} : seeing;
  }

  constexpr bool sees(std::int64_t query, std::int64_t key) const {
    return pairs({query, query + 1}, {key, key + 1}) > 0;
  }
  /// Whether no query sees a key after its own.
  constexpr bool is_causal() const { return prefix_ <= 1; }

  /// The position at which a key is rotated.
  constexpr std::int64_t key_position(std::int64_t token) const {
    return chunks_.stride > 0 ? token % chunks_.stride : token;
  }
  /// Exclusive upper bound of all positions in a document of `length` tokens.
  constexpr std::int64_t positions(std::int64_t length) const {
    if (chunks_.stride == 0 || length <= chunks_.stride) return length;
    const std::int64_t successive = std::min(chunks_.cap, 2 * chunks_.stride - 1);
    return std::max({chunks_.stride, successive + 1, chunks_.farthest + 1});
  }

  /// The numbers that define the mask: equal exactly for equal masks.
  constexpr std::array<std::int64_t, 7> parameters() const {
    return {band_.low, band_.high, sinks_, prefix_, chunks_.stride, chunks_.cap, chunks_.farthest};
  }
  friend constexpr bool operator==(const Mask&, const Mask&) = default;

 private:
  /// A range that holds all keys that the queries see.
  constexpr Range before_last(Range q) const { return {0, std::max(q.end, prefix_)}; }

  /// Calls visit(q, k, band) for disjoint rectangles that hold all allowed pairs, ascending by key
  /// for the same queries. Ignores positions, so dual chunk attention is plain causal here.
  template <typename Visit>
  constexpr void for_each_band(Range q, Range k, Visit&& visit) const {
    if (sinks_ > 0) {
      visit(q, Range{k.begin, std::min(k.end, sinks_)}, Band::causal());
      visit(q, Range{std::max(k.begin, sinks_), k.end}, band_);
    } else if (q.begin < prefix_) {
      const Range first{0, prefix_};
      visit(intersect(q, first), intersect(k, first), Band::full());
      visit(Range{std::max(q.begin, prefix_), q.end}, k, band_);
    } else {
      visit(q, k, band_);
    }
  }

  template <typename Visit>
  constexpr void for_each_chunk(Range q, Range k, Visit&& visit) const {
    const std::int64_t stride = chunks_.stride;
    for (std::int64_t begin = q.begin / stride * stride; begin < q.end; begin += stride) {
      const Range queries = intersect(q, {begin, begin + stride});
      const auto add = [&](Range keys, Band band, PositionMap map) {
        keys = intersect(k, keys);
        if (!keys.empty()) visit(Region{queries, keys, band, map});
      };
      add({0, begin - stride}, Band::full(), {chunks_.farthest, 0, PositionMap::kNoCap});
      if (begin > 0) {
        add({begin - stride, begin}, Band::full(), {stride - begin, 1, chunks_.cap});
      }
      add({begin, begin + stride}, Band::causal(), {-begin, 1, PositionMap::kNoCap});
    }
  }

  Band band_ = Band::causal();
  std::int64_t sinks_ = 0;
  std::int64_t prefix_ = 0;
  DualChunk chunks_;
};

/// The regions of a document's mask as tasks with an empty range of heads.
inline std::vector<Task> regions(const Mask& mask, std::int64_t length) {
  std::vector<Task> tasks;
  mask.for_each_task({0, {0, length}, {0, length}, {}},
                     [&](const Task& task) { tasks.push_back(task); });
  return tasks;
}

}  // namespace cadenza
