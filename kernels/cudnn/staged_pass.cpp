// SPDX-License-Identifier: Apache-2.0
#include "staged_pass.hpp"

#include <algorithm>

#include "staging.hpp"

namespace cadenza::kernels::cudnn {
namespace {

template <typename Item>
void for_each(const char* label, std::int64_t items, const Item& item) {
  launch(label, Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>>(0, items), item);
}

Rotary rotary_of(const RotaryTable<float>& table, int dim, const QueryRows<bfloat16>& buffer,
                 std::int64_t token, const PositionMap& map) {
  Rotary rotary;
  rotary.half = dim / 2;
  if (!table.enabled()) return rotary;
  rotary.cos = table.cos.data();
  rotary.sin = table.sin.data();
  const auto positions = static_cast<std::int64_t>(table.cos.extent(0)) / table.half;
  rotary.table = table_rows(buffer, token, map, positions);
  return rotary;
}

Window query_window(const SdpaShape& shape) {
  return {shape.queries, shape.heads, shape.q_row / shape.head_dim};
}

Window key_window(const SdpaShape& shape) {
  return {shape.keys, shape.kv_heads, shape.k_row / shape.head_dim};
}

/// First row and head of a call in a buffer of queries, in rows of one head.
std::int64_t first_query(const SdpaCall& call) {
  return call.q_begin * query_window(call.shape).held + call.q_head;
}

std::int64_t first_key(const SdpaCall& call) {
  return call.k_begin * key_window(call.shape).held + call.k_head;
}

}  // namespace

StagedPass::StagedPass(Pass pass, const AttentionShape& shape, const RotaryTable<float>& rotary,
                       const TaskList<bfloat16>& list)
    : pass_(pass),
      shape_(shape),
      rotary_(rotary),
      list_(list),
      calls_(sdpa_calls(pass, shape, list)) {
  if (rotary.enabled()) plan_rotations();
  plan_results();
}

std::size_t StagedPass::take(std::size_t bytes) {
  const std::size_t at = bytes_;
  bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return at;
}

void StagedPass::plan_rotations() {
  rotated_of_task_.resize(list_.tasks.size());
  for (const SdpaCall& call : calls_) {
    const TaskRows& rows = list_.tasks[static_cast<std::size_t>(call.task)];
    const Range tokens = {rows.task.q.begin, rows.task.q.end};
    auto found = std::ranges::find_if(rotated_, [&](const RotatedRows& each) {
      return each.query_rows == rows.query_rows && each.map == rows.task.q_positions;
    });
    if (found == rotated_.end()) {
      found = rotated_.insert(found, {rows.query_rows, rows.task.q_positions, tokens, 0});
    }
    found->tokens = {std::min(found->tokens.begin, tokens.begin),
                     std::max(found->tokens.end, tokens.end)};
    rotated_of_task_[static_cast<std::size_t>(call.task)] =
        static_cast<int>(found - rotated_.begin());
  }
  for (RotatedRows& rows : rotated_) {
    const auto& buffer = list_.queries[static_cast<std::size_t>(rows.query_rows)];
    const std::int64_t row = held_heads(buffer.heads, shape_.heads).size() * shape_.head_dim;
    rows.at = take(static_cast<std::size_t>(rows.tokens.size() * row) * sizeof(bfloat16));
  }
}

void StagedPass::plan_results() {
  std::size_t queries = 0, keys = 0;
  for (const SdpaCall& call : calls_) {
    queries = std::max(queries, static_cast<std::size_t>(query_window(call.shape).size()));
    keys = std::max(keys, static_cast<std::size_t>(key_window(call.shape).size()));
  }
  const std::size_t row = static_cast<std::size_t>(shape_.head_dim) * sizeof(bfloat16);
  at_.out = take(queries * row);
  at_.stats = take(queries * sizeof(float));
  at_.factors = take(queries * sizeof(float));
  if (pass_ == Pass::forward) return;
  at_.dq = take(queries * row);
  at_.dk = take(keys * row);
  at_.dv = take(keys * row);
}

const QueryRows<bfloat16>& StagedPass::queries_of(const SdpaCall& call) const {
  const TaskRows& rows = list_.tasks[static_cast<std::size_t>(call.task)];
  return list_.queries[static_cast<std::size_t>(rows.query_rows)];
}

const KeyRows<bfloat16>& StagedPass::keys_of(const SdpaCall& call) const {
  const TaskRows& rows = list_.tasks[static_cast<std::size_t>(call.task)];
  return list_.keys[static_cast<std::size_t>(rows.key_rows)];
}

void StagedPass::run(unsigned char* memory, const Sdpa& sdpa) const {
  for (const RotatedRows& rows : rotated_) rotate(memory, rows);
  for (const SdpaCall& call : calls_) {
    const SdpaRows rows = rows_of(call, memory);
    if (pass_ == Pass::backward) prepare_gradients(call, rows, memory);
    sdpa(call.shape, rows);
    if (pass_ == Pass::forward) {
      merge(call, rows, memory);
    } else {
      add_gradients(call, rows);
    }
  }
}

void StagedPass::rotate(unsigned char* memory, const RotatedRows& rows) const {
  const auto& buffer = list_.queries[static_cast<std::size_t>(rows.query_rows)];
  const std::int64_t heads = held_heads(buffer.heads, shape_.heads).size();
  const Rotary rotary = rotary_of(rotary_, shape_.head_dim, buffer, rows.tokens.begin, rows.map);
  const std::int64_t first = rows.tokens.begin - buffer.tokens.begin;
  for_each("rotate queries", rows.tokens.size() * heads * rotary.half,
           RotateQueries{rotary, heads, buffer.q + first * heads * shape_.head_dim,
                         reinterpret_cast<bfloat16*>(memory + rows.at)});
}

SdpaRows StagedPass::rows_of(const SdpaCall& call, unsigned char* memory) const {
  const auto& queries = queries_of(call);
  const auto& keys = keys_of(call);
  const std::int64_t dim = shape_.head_dim;
  const std::int64_t query = first_query(call) * dim;
  const std::int64_t key = first_key(call) * dim;
  SdpaRows rows;
  rows.q = queries.q + query;
  if (!rotated_.empty()) {
    const int index = rotated_of_task_[static_cast<std::size_t>(call.task)];
    const RotatedRows& rotated = rotated_[static_cast<std::size_t>(index)];
    const std::int64_t before = rotated.tokens.begin - queries.tokens.begin;
    rows.q = reinterpret_cast<const bfloat16*>(memory + rotated.at) +
             (query - before * call.shape.q_row);
  }
  rows.k = keys.k + key;
  rows.v = keys.v + key;
  const auto packed = [&](std::size_t at) { return reinterpret_cast<bfloat16*>(memory + at); };
  rows.out = packed(at_.out);
  rows.stats = reinterpret_cast<float*>(memory + at_.stats);
  if (pass_ == Pass::forward) return rows;
  rows.dout = queries.dout + query;
  rows.dq = packed(at_.dq);
  rows.dk = packed(at_.dk);
  rows.dv = packed(at_.dv);
  return rows;
}

void StagedPass::merge(const SdpaCall& call, const SdpaRows& rows, unsigned char* memory) const {
  const auto& queries = queries_of(call);
  const Window window = query_window(call.shape);
  const std::int64_t first = first_query(call);
  auto* old_factors = reinterpret_cast<float*>(memory + at_.factors);
  for_each("merge lse", window.size(),
           MergeLse{window, queries.lse + first, rows.stats, old_factors});
  for_each("merge out", window.size() * shape_.head_dim,
           MergeOut{window, shape_.head_dim, queries.out + first * shape_.head_dim, rows.out,
                    rows.stats, old_factors});
}

void StagedPass::prepare_gradients(const SdpaCall& call, const SdpaRows& rows,
                                   unsigned char* memory) const {
  const auto& queries = queries_of(call);
  const Window window = query_window(call.shape);
  const std::int64_t first = first_query(call);
  auto* factors = reinterpret_cast<float*>(memory + at_.factors);
  for_each("prepare rows of attention", window.size(),
           PrepareRows{window, shape_.head_dim, queries.lse + first, queries.delta + first,
                       rows.dout, rows.stats, factors});
  for_each("stand-in for out", window.size() * shape_.head_dim,
           StandInForOut{window, shape_.head_dim, rows.dout, factors, rows.out});
}

void StagedPass::add_gradients(const SdpaCall& call, const SdpaRows& rows) const {
  const auto& queries = queries_of(call);
  const auto& keys = keys_of(call);
  const std::int64_t dim = shape_.head_dim;
  const Task& task = list_.tasks[static_cast<std::size_t>(call.task)].task;
  const Window window = query_window(call.shape);
  const Rotary rotary = rotary_of(rotary_, shape_.head_dim, queries,
                                  queries.tokens.begin + call.q_begin, task.q_positions);
  for_each("add dq", window.size() * rotary.half,
           AddQueryGradient{window, rotary, rows.dq, queries.dq + first_query(call) * dim});
  const Window key_rows = key_window(call.shape);
  const std::int64_t first = first_key(call) * dim;
  for_each("add dk and dv", key_rows.size() * dim,
           AddKeyGradients{key_rows, dim, rows.dk, rows.dv, keys.dk + first, keys.dv + first});
}

}  // namespace cadenza::kernels::cudnn
