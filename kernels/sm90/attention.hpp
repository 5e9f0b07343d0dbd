// SPDX-License-Identifier: Apache-2.0
// Attention in bfloat16 on Hopper (compute capability 9.0), with its asynchronous products and its
// copy engine (TMA).
#pragma once

#include <algorithm>

#include "cadenza/base/task.hpp"
#include "cadenza/kernels/attention.hpp"

namespace cadenza::kernels::sm90 {

/// Supported head_dims.
inline constexpr int kHeadDims[] = {64, 128};
inline bool fits(const AttentionShape& shape) {
  return std::ranges::find(kHeadDims, shape.head_dim) != std::end(kHeadDims);
}

/// Puts a pass on the stream, for shapes that `fits` accepts. Deterministic: no two blocks write
/// the same element.
void attention(Pass pass, const AttentionShape& shape, const RotaryTable<float>& rotary,
               const TaskList<bfloat16>& list);

}  // namespace cadenza::kernels::sm90
