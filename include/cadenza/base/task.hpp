// SPDX-License-Identifier: Apache-2.0
// The attention task: a rectangle of one document's attention matrix with its mask rule.
// Plans place tasks and kernels compute them; this is all that the two share.
#pragma once

#include "cadenza/base/range.hpp"

namespace cadenza {

/// How positions and masks are read inside a task.
enum class Rule : std::uint8_t {
  causal,  ///< key j is seen by query i when j <= i + diagonal (document-relative tokens)
  full,    ///< every key of the rectangle is seen by every query
};

/// A rectangle of the attention matrix of one document.
struct Task {
  int document = 0;  ///< index into the plan's documents
  Range q;           ///< queries, tokens of the document
  Range k;           ///< keys, tokens of the document
  Range heads;       ///< query heads
  Rule rule = Rule::causal;
  std::int64_t diagonal = 0;  ///< causal; other than 0 only where tokens are counted in stripes
  friend constexpr bool operator==(const Task&, const Task&) = default;
};

/// Number of keys of `k` that query token `i` sees under `rule`.
constexpr std::int64_t visible_keys(std::int64_t i, Range k, Rule rule, std::int64_t diagonal = 0) {
  if (rule == Rule::full) return k.size();
  return std::max<std::int64_t>(0, std::min(k.end, i + diagonal + 1) - k.begin);
}

/// Query-key pairs that the mask allows in q × k, for one head. Closed form, exact in 64 bits.
constexpr std::int64_t allowed_pairs(Range q, Range k, Rule rule, std::int64_t diagonal = 0) {
  if (q.empty() || k.empty()) return 0;
  if (rule == Rule::full) return q.size() * k.size();
  q = {q.begin + diagonal, q.end + diagonal};
  // Rows i < k.begin see nothing, rows i >= k.end - 1 see the whole key range.
  const std::int64_t first = std::max(q.begin, k.begin);
  const std::int64_t ramp_end = std::clamp(k.end, first, std::max(first, q.end));
  const std::int64_t ramp = std::max<std::int64_t>(0, std::min(ramp_end, q.end) - first);
  const std::int64_t first_count = first - k.begin + 1;
  const std::int64_t ramp_pairs = ramp * first_count + ramp * (ramp - 1) / 2;
  const std::int64_t whole = std::max<std::int64_t>(0, q.end - std::max(q.begin, ramp_end));
  return ramp_pairs + whole * k.size();
}

/// Forward floating-point operations of a task (two matrix products, multiply + add = 2):
/// 4 * head_dim per allowed pair and head. The backward pass costs 2.5 times as much.
constexpr double forward_flops(const Task& task, int head_dim) {
  return 4.0 * head_dim *
         static_cast<double>(allowed_pairs(task.q, task.k, task.rule, task.diagonal)) *
         static_cast<double>(task.heads.size());
}
inline constexpr double kBackwardFlopsRatio = 2.5;

}  // namespace cadenza
