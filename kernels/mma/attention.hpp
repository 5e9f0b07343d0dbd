// SPDX-License-Identifier: Apache-2.0
// Attention in bfloat16 on the tensor cores of a device (sm_80 and newer).
#pragma once

#include <algorithm>

#include "cadenza/base/task.hpp"
#include "cadenza/kernels/attention.hpp"

namespace cadenza::kernels::mma {

/// Supported head_dims.
inline constexpr int kHeadDims[] = {32, 64, 96, 128};
inline bool fits(const AttentionShape& shape) {
  return std::ranges::find(kHeadDims, shape.head_dim) != std::end(kHeadDims);
}

/// Puts a pass on the stream, for shapes that `fits` accepts. Deterministic: no two blocks write
/// the same element.
void attention(Pass pass, const AttentionShape& shape, const RotaryTable<float>& rotary,
               const TaskList<bfloat16>& list);

/// The same for tasks of documents that all have a pattern.
void sparse_attention(Pass pass, const AttentionShape& shape, const RotaryTable<float>& rotary,
                      const TaskList<bfloat16>& list);

}  // namespace cadenza::kernels::mma
