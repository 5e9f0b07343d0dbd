// SPDX-License-Identifier: Apache-2.0
#include "call.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "../tasks/buffers.hpp"
#include "cadenza/base/error.hpp"

namespace cadenza::kernels::device {
namespace {

const Bits* bits(const bfloat16* data) {
  return reinterpret_cast<const Bits*>(data);
}

Queries copy_of(const QueryRows<bfloat16>& rows, int heads) {
  const Range held = held_heads(rows.heads, heads);
  Queries copy;
  copy.begin = rows.tokens.begin;
  copy.first_head = static_cast<int>(held.begin);
  copy.heads = static_cast<int>(held.size());
  copy.out = rows.out;
  copy.lse = rows.lse;
  copy.dout = bits(rows.dout);
  copy.delta = rows.delta;
  copy.dq = rows.dq;
  return copy;
}

Keys copy_of(const KeyRows<bfloat16>& rows, int kv_heads) {
  const Range held = held_heads(rows.heads, kv_heads);
  Keys copy;
  copy.begin = rows.tokens.begin;
  copy.first_head = static_cast<int>(held.begin);
  copy.heads = static_cast<int>(held.size());
  copy.k = bits(rows.k);
  copy.v = bits(rows.v);
  copy.dk = rows.dk;
  copy.dv = rows.dv;
  return copy;
}

Rotation rotation_of(const QueryRows<bfloat16>& rows, const PositionMap& map, int buffer,
                     std::int64_t positions) {
  Rotation rotation;
  rotation.queries = buffer;
  if (positions > 0) {
    const TableRows table = table_rows(rows, rows.tokens.begin, map, positions);
    rotation.first = table.first;
    rotation.step = table.step;
    rotation.last = table.last;
  }
  return rotation;
}

/// Extends the rotation to the rows `q`, rounded to whole units, whose rows kernels read.
void take_in(Rotation& rotation, Range q, Range tokens) {
  const std::int64_t begin = (q.begin - tokens.begin) / kMostRows * kMostRows;
  const std::int64_t past = (q.end - tokens.begin + kMostRows - 1) / kMostRows * kMostRows;
  const Range rows = {begin, std::min(tokens.size(), past)};
  if (q.empty()) return;
  const bool first = rotation.rows == 0;
  const std::int64_t end = first ? rows.end : std::max(rotation.begin + rotation.rows, rows.end);
  rotation.begin = first ? rows.begin : std::min(rotation.begin, rows.begin);
  rotation.rows = end - rotation.begin;
}

/// Requires alignment to 16 bytes, which kernels copy at once.
void check_alignment(const Bits* data, const char* what) {
  if (reinterpret_cast<std::uintptr_t>(data) % 16 == 0) return;
  fail(ExitCode::internal, "attention on tensor cores: {} does not begin at 16 bytes", what);
}

}  // namespace

void Call::place_rotated(Bits* memory) {
  if (problem.half == 0) return;
  for (Rotation& rotation : rotations) {
    const std::int64_t row =
        std::int64_t{2} * problem.half * queries[static_cast<std::size_t>(rotation.queries)].heads;
    rotation.rotated = memory - rotation.begin * row;
    memory += 2 * rotation.pairs;
  }
}

void Call::take_rows(const AttentionShape& shape, const RotaryTable<float>& rotary,
                     const TaskList<bfloat16>& list) {
  problem.half = rotary.enabled() ? rotary.half : 0;
  problem.cos = rotary.cos.data();
  problem.sin = rotary.sin.data();
  queries.clear();
  for (const auto& rows : list.queries) {
    queries.push_back(copy_of(rows, shape.heads));
    check_alignment(bits(rows.q), "q");
    check_alignment(bits(rows.dout), "dout");
  }
  keys.clear();
  for (const auto& rows : list.keys) {
    keys.push_back(copy_of(rows, shape.kv_heads));
    check_alignment(bits(rows.k), "k");
    check_alignment(bits(rows.v), "v");
  }
  for (Rotation& rotation : rotations) {
    rotation.from = bits(list.queries[static_cast<std::size_t>(rotation.queries)].q);
    rotation.rotated = const_cast<Bits*>(rotation.from);  // only read, unless rotated elsewhere
  }
}

Call make_call(const AttentionShape& shape, const RotaryTable<float>& rotary,
               const TaskList<bfloat16>& list) {
  Call call;
  call.problem.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim)));
  std::map<std::pair<int, PositionMap>, int> rotations;
  for (const TaskRows& rows : list.tasks) {
    const Task& task = rows.task;
    const auto [at, added] = rotations.try_emplace({rows.query_rows, task.q_positions},
                                                   static_cast<int>(call.rotations.size()));
    const auto& buffer = list.queries[static_cast<std::size_t>(rows.query_rows)];
    if (added) {
      call.rotations.push_back(
          rotation_of(buffer, task.q_positions, rows.query_rows, positions_of(rotary)));
    }
    take_in(call.rotations[static_cast<std::size_t>(at->second)], task.q, buffer.tokens);
    call.entries.push_back({task.q.begin, task.q.end, task.k.begin, task.k.end, task.band.low,
                            task.band.high, static_cast<int>(task.heads.begin),
                            static_cast<int>(task.heads.end), rows.query_rows, rows.key_rows,
                            at->second});
  }
  call.take_rows(shape, rotary, list);
  for (Rotation& rotation : call.rotations) {
    const Queries& of = call.queries[static_cast<std::size_t>(rotation.queries)];
    rotation.pairs = rotation.rows * of.heads * call.problem.half;
    call.rotated_elements += 2 * rotation.pairs;
  }
  return call;
}

std::int64_t positions_of(const RotaryTable<float>& rotary) {
  return rotary.enabled() ? static_cast<std::int64_t>(rotary.cos.extent(0)) / rotary.half : 0;
}

UnitShape unit_shape(const AttentionShape& shape, Side side, int rows) {
  return {side, rows, side == Side::queries ? 1 : shape.group()};
}

}  // namespace cadenza::kernels::device
