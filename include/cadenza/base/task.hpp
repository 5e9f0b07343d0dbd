// SPDX-License-Identifier: Apache-2.0
// The two passes of a training step, the heads of core attention, and the attention task: a
// rectangle of one document's attention matrix and the band of pairs that its mask allows. Plans
// place tasks and kernels compute them; this is all that the two share.
#pragma once

#include <compare>
#include <cstdint>

#include "cadenza/base/range.hpp"

namespace cadenza {

enum class Pass : std::uint8_t { forward, backward };

/// Heads that a rank holds, and bytes of their numbers. Plans count bytes with it, kernels know the
/// types of what they are given and read the first three alone.
struct AttentionShape {
  int heads = 1;     ///< query heads
  int kv_heads = 1;  ///< divides heads; query head h reads key head h / (heads / kv_heads)
  int head_dim = 1;
  int element_bytes = 4;      ///< of Q, K, V and dO, which are only read
  int accumulator_bytes = 4;  ///< of results, LSE and delta, which are sums; at least element_bytes
  int group() const { return heads / kv_heads; }
  /// The key heads that a range of query heads reads.
  Range key_heads(Range queries) const {
    return {queries.begin / group(), (queries.end + group() - 1) / group()};
  }
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

/// Query i sees key j where i + low <= j <= i + high; i and j count tokens of the document.
struct Band {
  static constexpr std::int64_t kNoEdge = std::int64_t{1} << 60;  ///< beyond all tokens

  std::int64_t low = -kNoEdge;
  std::int64_t high = 0;

  /// All keys up to `diagonal` after the query's own. `diagonal` differs from 0 only where tokens
  /// are counted in stripes.
  static constexpr Band causal(std::int64_t diagonal = 0) { return {-kNoEdge, diagonal}; }
  /// All keys.
  static constexpr Band full() { return {-kNoEdge, kNoEdge}; }
  /// The query's own key and those before it, `keys` in all.
  static constexpr Band window(std::int64_t keys) { return {1 - keys, 0}; }

  constexpr bool has_low() const { return low > -kNoEdge; }
  constexpr bool has_high() const { return high < kNoEdge; }
  constexpr bool is_full() const { return !has_low() && !has_high(); }
  constexpr bool sees(std::int64_t query, std::int64_t key) const {
    return query + low <= key && key <= query + high;
  }
  /// The band of the same pairs after the keys' counts have grown by `by`.
  constexpr Band shifted(std::int64_t by) const {
    return {has_low() ? low + by : low, has_high() ? high + by : high};
  }
  friend constexpr auto operator<=>(const Band&, const Band&) = default;
  friend constexpr bool operator==(const Band&, const Band&) = default;
};

/// Maps a query's position in the text to its position in attention: first + step * text, clamped
/// to [0, cap]. A key has one position, whatever the task.
struct PositionMap {
  static constexpr std::int64_t kNoCap = std::int64_t{1} << 60;

  std::int64_t first = 0;
  std::int64_t step = 1;  ///< at least 0; 0: all queries have the position `first`
  std::int64_t cap = kNoCap;

  constexpr std::int64_t of(std::int64_t text) const {
    return std::clamp<std::int64_t>(first + step * text, 0, cap);
  }
  friend constexpr auto operator<=>(const PositionMap&, const PositionMap&) = default;
  /// Explicit: nvcc does not generate it from <=>.
  friend constexpr bool operator==(const PositionMap&, const PositionMap&) = default;
};

/// A rectangle of the attention matrix of one document.
struct Task {
  int document = 0;  ///< index into the plan's documents
  Range q;           ///< queries, tokens of the document
  Range k;           ///< keys, tokens of the document
  Range heads;       ///< query heads
  Band band = Band::causal();
  PositionMap q_positions = {};  ///< positions in the text, unless the mask changes them
  friend constexpr bool operator==(const Task&, const Task&) = default;
};

/// The band of the pairs that both bands allow.
constexpr Band common(Band a, Band b) {
  return {std::max(a.low, b.low), std::min(a.high, b.high)};
}

/// From the first to the last key of `k` that some query of `q` sees; all between are seen too.
constexpr Range seen_keys(Range q, Range k, Band band) {
  if (q.empty()) return {k.begin, k.begin};
  return intersect(k, {q.begin + band.low, q.end + band.high});
}

/// From the first to the last query of `q` that sees some key of `k`; all between do too.
constexpr Range seeing_queries(Range q, Range k, Band band) {
  if (k.empty()) return {q.begin, q.begin};
  return intersect(q, {k.begin - band.high, k.end - band.low});
}

/// Number of keys of `k` that query token `i` sees.
constexpr std::int64_t visible_keys(std::int64_t i, Range k, Band band) {
  return std::max<std::int64_t>(0, seen_keys({i, i + 1}, k, band).size());
}

/// Number of pairs of q x k with key <= query + high, in closed form, exact in 64 bits.
constexpr std::int64_t pairs_up_to(Range q, Range k, std::int64_t high) {
  q = {q.begin + high, q.end + high};
  // Rows i < k.begin see nothing, rows i >= k.end - 1 see the whole key range.
  const std::int64_t first = std::max(q.begin, k.begin);
  const std::int64_t ramp_end = std::clamp(k.end, first, std::max(first, q.end));
  const std::int64_t ramp = std::max<std::int64_t>(0, std::min(ramp_end, q.end) - first);
  const std::int64_t first_count = first - k.begin + 1;
  const std::int64_t ramp_pairs = ramp * first_count + ramp * (ramp - 1) / 2;
  const std::int64_t whole = std::max<std::int64_t>(0, q.end - std::max(q.begin, ramp_end));
  return ramp_pairs + whole * k.size();
}

/// Query-key pairs that the band allows in q x k, for one head.
constexpr std::int64_t allowed_pairs(Range q, Range k, Band band) {
  if (q.empty() || k.empty() || band.high < band.low) return 0;
  const std::int64_t up_to_high =
      band.has_high() ? pairs_up_to(q, k, band.high) : q.size() * k.size();
  return band.has_low() ? up_to_high - pairs_up_to(q, k, band.low - 1) : up_to_high;
}

/// Query-key pairs of a task, for one head.
constexpr std::int64_t allowed_pairs(const Task& task) {
  return allowed_pairs(task.q, task.k, task.band);
}

/// The task without the rows and columns at its edges that have no allowed pair.
constexpr Task trimmed(Task task) {
  task.q = seeing_queries(task.q, task.k, task.band);
  task.k = seen_keys(task.q, task.k, task.band);
  return task;
}

/// Forward floating-point operations of a task (two matrix products, multiply + add = 2):
/// 4 * head_dim per allowed pair and head. The backward pass costs 2.5 times as much.
constexpr double forward_flops(const Task& task, int head_dim) {
  return 4.0 * head_dim * static_cast<double>(allowed_pairs(task)) *
         static_cast<double>(task.heads.size());
}
inline constexpr double kBackwardFlopsRatio = 2.5;

}  // namespace cadenza
