// SPDX-License-Identifier: Apache-2.0
// What the copy engine has to know of a call: the arrays that a pass reads.
#pragma once

#include <vector>

#include "../device/call.hpp"
#include "cadenza/base/pass.hpp"
#include "problem.hpp"

namespace cadenza::kernels::sm90 {

/// In the order of the problem's maps. What a pass does not read is empty, or has no rows.
struct CallRows {
  std::vector<MappedRows> entries;    ///< [entries, kEntryMaps]
  std::vector<MappedRows> rotations;  ///< [rotations]
  std::vector<MappedRows> dout;       ///< [buffers of queries]
  std::vector<MappedRows> keys;       ///< [buffers of keys, kBufferMaps]
  friend bool operator==(const CallRows&, const CallRows&) = default;
};

/// `call` is of `list`, and its rotated queries have their places.
CallRows rows_of(const Call& call, const TaskList<bfloat16>& list, Pass pass, int head_dim);

/// Maps of rows; those without rows stay empty. `encode`: tensor_map.
std::vector<TensorMap> encoded(const std::vector<MappedRows>& rows,
                               TensorMap (*encode)(const MappedRows&));

}  // namespace cadenza::kernels::sm90
