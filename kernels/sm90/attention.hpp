// SPDX-License-Identifier: Apache-2.0
// Attention in bfloat16 on Hopper (compute capability 9.0), with its asynchronous products and its
// copy engine.
#pragma once

#include "cadenza/base/pass.hpp"
#include "cadenza/kernels/attention.hpp"

namespace cadenza::kernels::sm90 {

/// Puts a pass on the stream. Shapes that `fits` takes. Deterministic: nothing is written by two
/// blocks.
void attention(Pass pass, const AttentionShape& shape, const RotaryTable<float>& rotary,
               const TaskList<bfloat16>& list);

}  // namespace cadenza::kernels::sm90
