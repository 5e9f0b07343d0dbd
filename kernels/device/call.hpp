// SPDX-License-Identifier: Apache-2.0
// A call of attention as arrays that the kernels for tensor cores read: made on the host, copied to
// where they run.
#pragma once

#include <vector>

#include "../tasks/work_units.hpp"
#include "cadenza/kernels/attention.hpp"
#include "problem.hpp"

namespace cadenza::kernels::device {

struct Call {
  Problem problem;  ///< without the arrays
  std::vector<Queries> queries;
  std::vector<Keys> keys;
  std::vector<Rotation> rotations;
  std::vector<Entry> entries;
  std::int64_t rotated_elements = 0;  ///< of the rotated queries of all rotations

  /// The rows and the table of a call of the same tasks.
  void take_rows(const AttentionShape& shape, const RotaryTable<float>& rotary,
                 const TaskList<bfloat16>& list);
  /// Where they are to be rotated: room for rotated_elements.
  void place_rotated(Bits* memory);
};

/// Of its table; 0: no rotation.
std::int64_t positions_of(const RotaryTable<float>& rotary);

Call make_call(const AttentionShape& shape, const RotaryTable<float>& rotary,
               const TaskList<bfloat16>& list);

/// Units of `rows` rows, which divide kMostRows. Forward and dQ: Side::queries; dK and dV:
/// Side::keys.
UnitShape unit_shape(const AttentionShape& shape, Side side, int rows);

}  // namespace cadenza::kernels::device
