// SPDX-License-Identifier: Apache-2.0
// A sparse call in the form that the kernels for tensor cores read: the patterns of its tasks and
// heads. A kernel's parameters are of one size or the other: those of dense calls stay small.
#pragma once

#include "problem.hpp"

namespace cadenza::kernels::device {

/// Active blocks first to last of a line (a row or a column of blocks) of a pattern.
struct BlockRun {
  int first = 0;
  int last = 0;
};

/// What a query head computes of a task: pairs of its columns (keys that all later queries see),
/// and those of active blocks without the columns. Rows count from the beginning of a buffer.
struct Pattern {
  int first_column = 0;  ///< its columns: columns[first_column, + columns), ascending
  int columns = 0;       ///< their number
  int column_bits = 0;   ///< first word of its column_bits: one bit for each row of keys
  int lines = 0;         ///< rows, and columns, of blocks
  int q_edges = 0;       ///< first of lines + 1 edges: the first row of each line
  int k_edges = 0;       ///< the same of keys
  int q_runs = 0;        ///< first of its first_runs, for rows of blocks
  int k_runs = 0;        ///< the same for columns of blocks
  int relative = 0;      ///< 1: all lines have the same runs, counted from the diagonal
};

/// A row of keys that is a column of some heads: the sum of its gradients there.
struct ColumnSum {
  int keys = 0;  ///< index of the buffer
  int kv_head = 0;
  int row = 0;    ///< of the buffer
  int first = 0;  ///< its parts: rows summed[first, end) of column_gradients
  int end = 0;
};

/// A call of tasks that all have patterns.
struct SparseProblem : Problem {
  const Pattern* patterns = nullptr;
  const int* columns = nullptr;  ///< rows of buffers of keys
  const std::uint64_t* column_bits = nullptr;
  const int* edges = nullptr;       ///< rows of buffers
  const int* first_runs = nullptr;  ///< by line: its first run; the end is the next line's
  const BlockRun* runs = nullptr;
  float* column_gradients = nullptr;  ///< [columns, 2, D]: dK and dV of gathered units
  const ColumnSum* sums = nullptr;
  const int* summed = nullptr;
};

}  // namespace cadenza::kernels::device
