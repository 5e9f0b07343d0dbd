// SPDX-License-Identifier: Apache-2.0
// Arrays that a pass reads, for the copy engine.
#pragma once

#include <vector>

#include "../device/call.hpp"
#include "cadenza/base/task.hpp"
#include "problem.hpp"

namespace cadenza::kernels::sm90 {

/// Arrays in the order of the problem's maps. Those that a pass does not read are empty or have no
/// rows.
struct CallRows {
  std::vector<MappedRows> entries;    ///< [entries, kEntryMaps]
  std::vector<MappedRows> rotations;  ///< [rotations]
  std::vector<MappedRows> dout;       ///< [buffers of queries]
  std::vector<MappedRows> keys;       ///< [buffers of keys, kBufferMaps]
  friend bool operator==(const CallRows&, const CallRows&) = default;
};

/// Returns the rows of a call. `call` must be made of `list`, with memory for its rotated queries.
CallRows rows_of(const Call& call, const TaskList<bfloat16>& list, Pass pass, int head_dim);

/// Makes maps of rows; maps without rows stay empty. `encode`: tensor_map.
std::vector<TensorMap> encoded(const std::vector<MappedRows>& rows,
                               TensorMap (*encode)(const MappedRows&));

}  // namespace cadenza::kernels::sm90
