// SPDX-License-Identifier: Apache-2.0
#include "sdpa_calls.hpp"

#include <algorithm>
#include <tuple>

#include "../tasks/buffers.hpp"
#include "cadenza/base/error.hpp"

namespace cadenza::kernels::cudnn {
namespace {

/// The task cut at the queries where an edge of its band leaves the rectangle: those that have keys
/// behind their upper edge, those that see all keys, and those that have keys before their lower
/// edge alone. (The first may have a lower edge too.)
std::vector<Task> cut_at_edges(const Task& whole) {
  const Task task = trimmed(whole);
  if (allowed_pairs(task) == 0) return {};
  const auto [q, k, band] = std::tuple(task.q, task.k, task.band);
  const bool upper = q.begin + band.high < k.end - 1;
  const std::int64_t turn = upper ? std::min(q.end, k.end - band.high) : q.begin;
  const std::int64_t lower = std::clamp(k.begin - band.low + 1, turn, q.end);
  std::vector<Task> parts;
  for (const Range rows : {Range{q.begin, turn}, Range{turn, lower}, Range{lower, q.end}}) {
    Task part = task;
    part.q = rows;
    part = trimmed(part);
    if (!part.q.empty() && !part.k.empty()) parts.push_back(part);
  }
  return parts;
}

/// Query heads that one call computes: whole groups, or some heads of one group.
std::vector<Range> cut_at_groups(Range heads, std::int64_t group) {
  const std::int64_t first = (heads.begin + group - 1) / group * group;
  const std::int64_t last = heads.end / group * group;
  std::vector<Range> parts;
  for (const Range part : {Range{heads.begin, std::min(first, heads.end)}, Range{first, last},
                           Range{std::max(first, last), heads.end}}) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

/// The edges of a part in the terms of cuDNN.
void set_edges(SdpaShape& shape, const Task& part) {
  const Band& band = part.band;
  shape.causal = part.q.begin + band.high < part.k.end - 1;
  if (part.q.end - 1 + band.low <= part.k.begin) return;
  shape.left = shape.causal ? band.high - band.low + 1 : shape.keys - shape.queries + 1;
}

SdpaCall call_of(const AttentionShape& attention, const TaskList<bfloat16>& list, int index,
                 const Task& part, Range heads) {
  const TaskRows& rows = list.tasks[static_cast<std::size_t>(index)];
  const auto& queries = list.queries[static_cast<std::size_t>(rows.query_rows)];
  const auto& keys = list.keys[static_cast<std::size_t>(rows.key_rows)];
  const Range q_held = held_heads(queries.heads, attention.heads);
  const Range k_held = held_heads(keys.heads, attention.kv_heads);
  SdpaCall call;
  call.task = index;
  call.q_begin = part.q.begin - queries.tokens.begin;
  call.k_begin = part.k.begin - keys.tokens.begin;
  call.q_head = static_cast<int>(heads.begin - q_held.begin);
  call.k_head = static_cast<int>(heads.begin / attention.group() - k_held.begin);
  SdpaShape& shape = call.shape;
  shape.heads = static_cast<int>(heads.size());
  shape.kv_heads = std::max(1, shape.heads / attention.group());
  shape.head_dim = attention.head_dim;
  shape.queries = part.q.size();
  shape.keys = part.k.size();
  shape.q_row = q_held.size() * attention.head_dim;
  shape.k_row = k_held.size() * attention.head_dim;
  set_edges(shape, part);
  return call;
}

}  // namespace

bool fits(const AttentionShape& shape) {
  return shape.head_dim % kDimStep == 0 && shape.head_dim <= kLargestDim;
}

std::vector<SdpaCall> sdpa_calls(Pass pass, const AttentionShape& shape,
                                 const TaskList<bfloat16>& list) {
  std::vector<SdpaCall> calls;
  for (std::size_t i = 0; i < list.tasks.size(); ++i) {
    const Task& task = list.tasks[i].task;
    for (const Task& part : cut_at_edges(task)) {
      if (pass == Pass::backward && part.q.size() == 1 && part.k.size() == 1) {
        fail(ExitCode::usage,
             "attention.kernel: cudnn has no gradient of one query and one key: tokens {} and {} "
             "of document {}",
             part.q.begin, part.k.begin, task.document);
      }
      for (const Range heads : cut_at_groups(task.heads, shape.group())) {
        calls.push_back(call_of(shape, list, static_cast<int>(i), part, heads));
      }
    }
  }
  return calls;
}

}  // namespace cadenza::kernels::cudnn
