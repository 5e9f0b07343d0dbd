// SPDX-License-Identifier: Apache-2.0
#include "check_list.hpp"

#include <algorithm>

#include "buffers.hpp"
#include "cadenza/base/error.hpp"

namespace cadenza::kernels {
namespace {

void check_range(const char* what, std::size_t task, const Range& part, const Range& whole) {
  if (part.empty() || whole.contains(part)) return;
  fail(ExitCode::usage, "attention task {}: {} [{}, {}) is outside [{}, {})", task, what,
       part.begin, part.end, whole.begin, whole.end);
}

template <typename Real>
void check_heads(const AttentionShape& shape, std::size_t t, const Range& heads,
                 const QueryRows<Real>& queries, const KeyRows<Real>& keys) {
  check_range("heads of the query buffer", t, queries.heads, {0, shape.heads});
  check_range("heads of the key buffer", t, keys.heads, {0, shape.kv_heads});
  check_range("heads", t, heads, held_heads(queries.heads, shape.heads));
  check_range("key-value heads", t, shape.key_heads(heads), held_heads(keys.heads, shape.kv_heads));
}

/// Requires every query of the task to have a position in a rotary table of `count` positions.
template <typename Real>
void check_positions(std::size_t t, const Task& task, const QueryRows<Real>& queries,
                     std::int64_t count) {
  if (queries.positions.step < 1) {
    fail(ExitCode::usage, "attention task {}: step of positions {}; valid: at least 1", t,
         queries.positions.step);
  }
  const PositionMap& map = task.q_positions;
  if (map.step < 0 || map.cap < 0) {
    fail(ExitCode::usage,
         "attention task {}: map of positions with step {} and cap {}; valid: 0 or more", t,
         map.step, map.cap);
  }
  if (task.q.empty()) return;
  const auto at = [&](std::int64_t token) {
    return std::min(map.cap, map.first + map.step * position_of(queries, token));
  };
  check_range("positions", t, {at(task.q.begin), at(task.q.end - 1) + 1}, {0, count});
}

}  // namespace

template <typename Real>
void check_list(const AttentionShape& shape, const RotaryTable<Accumulator<Real>>& rotary,
                const TaskList<Real>& list) {
  if (shape.head_dim < 1 || shape.kv_heads < 1 || shape.heads < 1 ||
      shape.heads % shape.kv_heads != 0) {
    fail(ExitCode::usage,
         "attention with {} heads, {} key-value heads and head_dim {}: heads must be a multiple of "
         "key-value heads, all at least 1",
         shape.heads, shape.kv_heads, shape.head_dim);
  }
  const std::int64_t positions =
      rotary.enabled() ? static_cast<std::int64_t>(rotary.cos.extent(0)) / std::max(1, rotary.half)
                       : -1;
  for (std::size_t t = 0; t < list.tasks.size(); ++t) {
    const TaskRows& entry = list.tasks[t];
    const auto query_rows = static_cast<std::size_t>(entry.query_rows);
    const auto key_rows = static_cast<std::size_t>(entry.key_rows);
    if (query_rows >= list.queries.size() || key_rows >= list.keys.size()) {
      fail(ExitCode::usage, "attention task {}: buffers ({}, {}) of only ({}, {})", t,
           entry.query_rows, entry.key_rows, list.queries.size(), list.keys.size());
    }
    const QueryRows<Real>& queries = list.queries[query_rows];
    const KeyRows<Real>& keys = list.keys[key_rows];
    check_range("queries", t, entry.task.q, queries.tokens);
    check_range("keys", t, entry.task.k, keys.tokens);
    check_heads(shape, t, entry.task.heads, queries, keys);
    if (positions >= 0) check_positions(t, entry.task, queries, positions);
  }
}

template void check_list<float>(const AttentionShape&, const RotaryTable<float>&,
                                const TaskList<float>&);
template void check_list<double>(const AttentionShape&, const RotaryTable<double>&,
                                 const TaskList<double>&);
template void check_list<bfloat16>(const AttentionShape&, const RotaryTable<float>&,
                                   const TaskList<bfloat16>&);

}  // namespace cadenza::kernels
