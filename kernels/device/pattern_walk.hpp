// SPDX-License-Identifier: Apache-2.0
// What a walk over a pattern needs: lines of blocks, their runs of active blocks, rows of columns
// and their bits.
#pragma once

#include "sparse_problem.hpp"
#include "units.hpp"

namespace cadenza::kernels::device {

/// Returns the line of blocks that contains a row of the buffer.
CADENZA_DEVICE int line_of(const int* edges, int lines, std::int64_t row) {
  int line = 0;
  int end = lines;
  CADENZA_ROLL
  while (end - line > 1) {
    const int middle = line + (end - line) / 2;
    (edges[middle] <= row ? line : end) = middle;
  }
  return line;
}

/// Returns how many of ascending rows lie before a row.
CADENZA_DEVICE int rows_before(const int* rows, int count, std::int64_t row) {
  int first = 0;
  CADENZA_ROLL
  while (count > 0) {
    const int half = count / 2;
    const bool before = rows[first + half] < row;
    first += before ? half + 1 : 0;
    count = before ? count - half - 1 : half;
  }
  return first;
}

/// Returns the bits of 64 rows from `row` on.
CADENZA_DEVICE std::uint64_t bits_from(const std::uint64_t* words, std::int64_t row) {
  const auto shift = static_cast<unsigned>(row % 64);
  words += row / 64;
  return shift == 0 ? words[0] : words[0] >> shift | words[1] << (64 - shift);
}

/// Runs of active blocks of one line after another.
struct LineWalk {
  int line = 0;
  int last_line = 0;  ///< behind the last one
  int run = 0;        ///< next one of the line
  int last_run = 0;

  /// Before the lines of rows [first, end).
  CADENZA_DEVICE void start(const int* edges, int lines, std::int64_t first, std::int64_t end) {
    line = line_of(edges, lines, first) - 1;
    last_line = line_of(edges, lines, end - 1) + 1;
    run = last_run = 0;
  }
  CADENZA_DEVICE bool has_run() const { return run < last_run; }
  CADENZA_DEVICE bool has_line() const { return line + 1 < last_line; }
  CADENZA_DEVICE void next_line(const int* first_runs, int relative) {
    ++line;
    const int at = relative != 0 ? 0 : line;
    run = first_runs[at];
    last_run = first_runs[at + 1];
  }
  /// Returns the rows of the other side in the next run's blocks.
  CADENZA_DEVICE Tokens next_run(const BlockRun* runs, int relative, const int* edges, int lines) {
    const BlockRun of = runs[run++];
    const int from = relative != 0 ? line : 0;
    const auto edge = [&](int at) { return edges[at < 0 ? 0 : at < lines ? at : lines]; };
    return {edge(from + of.first), edge(from + of.last + 1)};
  }
};

CADENZA_DEVICE Tokens intersection(const Tokens& a, const Tokens& b) {
  return {max(a.begin, b.begin), min(a.end, b.end)};
}
CADENZA_DEVICE Tokens tokens_of(const Tokens& rows, std::int64_t first) {
  return {first + rows.begin, first + rows.end};
}

/// Bits [begin, end).
CADENZA_DEVICE std::uint64_t bits_between(int begin, int end) {
  const auto below = [](int bit) {
    return bit >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << (bit > 0 ? bit : 0)) - 1;
  };
  return below(end) & ~below(begin);
}

}  // namespace cadenza::kernels::device
