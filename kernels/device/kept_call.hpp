// SPDX-License-Identifier: Apache-2.0
// A call's arrays in the memory of its passes, kept with the list: a call of the same tasks only
// copies the arrays that point to other rows.
#pragma once

#include "../tasks/kept_tasks.hpp"
#include "call.hpp"

namespace cadenza::kernels::device {

/// A problem and its number of units; its arrays are in memory of the kernels.
struct PassProblem {
  Problem problem;
  int units = 0;
};

template <typename Memory>
class KeptCall : public KeptTasks {
 public:
  explicit KeptCall(const Memory& memory) : memory_(memory) {}

  /// Begins a call. Call it first.
  void take(const AttentionShape& shape, const RotaryTable<float>& rotary,
            const TaskList<bfloat16>& list) {
    if (key_.is_that_of(shape, positions_of(rotary), list)) {
      call_.take_rows(shape, rotary, list);
    } else {
      call_ = make_call(shape, rotary, list);
      units_.clear();
      entries_.set(memory_, call_.entries);
    }
    queries_.set(memory_, call_.queries);
    keys_.set(memory_, call_.keys);
  }
  const Call& call() const { return call_; }

  /// Sets the memory for rotated queries: room for the call's rotated_elements.
  void place_rotated(Bits* memory) {
    call_.place_rotated(memory);
    rotations_.set(memory_, call_.rotations);
  }

  /// Returns the problem of units of `rows` rows. Call it after place_rotated().
  PassProblem problem(const AttentionShape& shape, const TaskList<bfloat16>& list, Side side,
                      int rows) {
    const auto& [units, order] = units_.of(memory_, shape, list, unit_shape(shape, side, rows));
    PassProblem pass{call_.problem, static_cast<int>(units.size())};
    pass.problem.queries = queries_.array().data();
    pass.problem.keys = keys_.array().data();
    pass.problem.rotations = rotations_.array().data();
    pass.problem.entries = entries_.array().data();
    pass.problem.units = units.array().data();
    pass.problem.order = order.array().data();
    return pass;
  }

 private:
  template <typename T>
  using Array = KeptArray<T, Memory>;

  Memory memory_;
  ListKey<bfloat16> key_;
  Call call_;
  Array<Queries> queries_;
  Array<Keys> keys_;
  Array<Rotation> rotations_;
  Array<Entry> entries_;
  KeptUnits<Memory> units_;
};

}  // namespace cadenza::kernels::device
