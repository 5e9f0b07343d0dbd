// SPDX-License-Identifier: Apache-2.0
// An attention task and the rows of buffers that it reads, with their positions in the text.
#pragma once

#include <cstdint>

#include "cadenza/base/task.hpp"

namespace cadenza {

/// Text positions of the rows of a buffer: row r is at first + r * step. The rotation, through the
/// map of the task (Task::q_positions), and sparse patterns use them; masks compare tokens.
struct Positions {
  std::int64_t first = -1;  ///< position of tokens.begin; -1: tokens.begin itself
  std::int64_t step = 1;    ///< at least 1
  /// At every multiple of `run`, `gap` positions are skipped; 0: none. Rows of queries lie within
  /// one run: their rotation uses `step` alone.
  std::int64_t run = 0;
  std::int64_t gap = 0;
  friend bool operator==(const Positions&, const Positions&) = default;
};

/// A task and the buffers it reads: queries[query_rows] contains task.q, keys[key_rows] contains
/// task.k.
struct TaskRows {
  Task task;
  int query_rows = 0;
  int key_rows = 0;
  friend bool operator==(const TaskRows&, const TaskRows&) = default;
};

}  // namespace cadenza
