// SPDX-License-Identifier: Apache-2.0
// Attention in bfloat16 by cuDNN, to measure our own kernels against: of a CUDA build that found
// cuDNN and cudnn-frontend (CADENZA_CUDNN).
#pragma once

#include "cadenza/base/pass.hpp"
#include "cadenza/kernels/attention.hpp"

namespace cadenza::kernels::cudnn {

/// Puts a pass on the stream. Shapes that `fits` takes. Deterministic.
/// @throws Error(usage) where cuDNN does not compute a task
void attention(Pass pass, const AttentionShape& shape, const RotaryTable<float>& rotary,
               const TaskList<bfloat16>& list);

}  // namespace cadenza::kernels::cudnn
