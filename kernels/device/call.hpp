// SPDX-License-Identifier: Apache-2.0
// A call of attention as arrays that the kernels for tensor cores read: made on the host, copied to
// the device.
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
  std::int64_t rotated_elements = 0;  ///< of all rotations together

  /// Replaces rows and table by those of a call with the same tasks.
  void take_rows(const AttentionShape& shape, const RotaryTable<float>& rotary,
                 const TaskList<bfloat16>& list);
  /// Sets the memory for rotated queries: room for rotated_elements.
  void place_rotated(Bits* memory);
};

/// Number of positions in the table; 0: no rotation.
std::int64_t positions_of(const RotaryTable<float>& rotary);

Call make_call(const AttentionShape& shape, const RotaryTable<float>& rotary,
               const TaskList<bfloat16>& list);

/// Returns units of `rows` rows, which must divide kMostRows. Forward and dQ: Side::queries; dK and
/// dV: Side::keys.
UnitShape unit_shape(const AttentionShape& shape, Side side, int rows);

}  // namespace cadenza::kernels::device
