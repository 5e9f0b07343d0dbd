// SPDX-License-Identifier: Apache-2.0
// The unit of work of every kernel: plain numbers, without Kokkos, for nvcc and the host's
// compiler.
#pragma once

#include <cstdint>

namespace cadenza::kernels {

/// A tile of rows of one buffer and the query heads of one key-value head.
struct Unit {
  std::int64_t begin = 0;  ///< tokens of the document
  std::int64_t end = 0;
  int buffer = 0;
  int kv_head = 0;
  int head_begin = 0;  ///< bounds of the query heads that some task of the unit computes
  int head_end = 0;
  int first_entry = 0;  ///< its tasks: entries[first_entry, last_entry)
  int last_entry = 0;
  /// Sparse calls: its rows, if they are gathered columns from `begin` to the last before `end`:
  /// columns[first_column, + columns) of the call; 0: all rows of [begin, end).
  int first_column = 0;
  int columns = 0;
  friend bool operator==(const Unit&, const Unit&) = default;
};

}  // namespace cadenza::kernels
