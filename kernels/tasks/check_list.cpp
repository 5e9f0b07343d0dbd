// SPDX-License-Identifier: Apache-2.0
#include "check_list.hpp"

#include "cadenza/base/error.hpp"

namespace cadenza::kernels {
namespace {

void check_range(const char* what, std::size_t task, const Range& part, const Range& whole) {
  if (part.empty() || whole.contains(part)) return;
  fail(ExitCode::usage, "attention task {}: {} [{}, {}) is outside [{}, {})", task, what,
       part.begin, part.end, whole.begin, whole.end);
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
    check_range("queries", t, entry.task.q, list.queries[query_rows].tokens);
    check_range("keys", t, entry.task.k, list.keys[key_rows].tokens);
    check_range("heads", t, entry.task.heads, {0, shape.heads});
    if (positions >= 0) {
      check_range("positions", t, list.queries[query_rows].tokens, {0, positions});
    }
  }
}

template void check_list<float>(const AttentionShape&, const RotaryTable<float>&,
                                const TaskList<float>&);
template void check_list<double>(const AttentionShape&, const RotaryTable<double>&,
                                 const TaskList<double>&);
template void check_list<bfloat16>(const AttentionShape&, const RotaryTable<float>&,
                                   const TaskList<bfloat16>&);

}  // namespace cadenza::kernels
