// SPDX-License-Identifier: Apache-2.0
// Tokens of a task that a unit of the other side meets.
#pragma once

#include "problem.hpp"

namespace cadenza::kernels::device {

CADENZA_DEVICE std::int64_t min(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
CADENZA_DEVICE std::int64_t max(std::int64_t a, std::int64_t b) {
  return a > b ? a : b;
}

/// Limits a distance: buffers have fewer rows, so anything beyond is equally far.
CADENZA_DEVICE int clamped(std::int64_t distance) {
  constexpr std::int64_t kFar = 1 << 30;
  return static_cast<int>(min(max(distance, -kFar), kFar));
}

/// Tokens [begin, end) of one side.
struct Tokens {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  CADENZA_DEVICE bool empty() const { return begin >= end; }
};

/// Returns the keys of a task that some query of a unit of one head sees.
CADENZA_DEVICE Tokens keys_met(const Entry& task, const Unit& unit) {
  const std::int64_t first = max(task.q_begin, unit.begin);
  const std::int64_t last = min(task.q_end, unit.end) - 1;
  const bool other_head = task.head_begin > unit.head_begin || task.head_end <= unit.head_begin;
  if (other_head || first > last) return {};
  return {max(task.k_begin, first + task.low), min(task.k_end, last + task.high + 1)};
}

/// Returns the queries of a task that see some key of a unit.
CADENZA_DEVICE Tokens queries_met(const Entry& task, const Unit& unit) {
  const std::int64_t first = max(task.k_begin, unit.begin);
  const std::int64_t last = min(task.k_end, unit.end) - 1;
  if (first > last) return {};
  return {max(task.q_begin, first - task.high), min(task.q_end, last - task.low + 1)};
}

/// Heads of a task that a unit computes: [first, end).
struct Heads {
  int first = 0;
  int end = 0;
};
CADENZA_DEVICE Heads heads_met(const Entry& task, const Unit& unit) {
  return {task.head_begin > unit.head_begin ? task.head_begin : unit.head_begin,
          task.head_end < unit.head_end ? task.head_end : unit.head_end};
}

}  // namespace cadenza::kernels::device
