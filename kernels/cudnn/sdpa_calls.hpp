// SPDX-License-Identifier: Apache-2.0
// Tasks as calls of scaled-dot-product attention as cuDNN knows it: a rectangle of queries and keys
// in strided rows, with at most two diagonal edges. No cuDNN here, so that every build tests it.
#pragma once

#include <cstdint>
#include <vector>

#include "cadenza/base/pass.hpp"
#include "cadenza/kernels/attention.hpp"
#include "sdpa.hpp"

namespace cadenza::kernels::cudnn {

/// head_dims that cuDNN computes on every device from sm_80 on.
inline constexpr int kDimStep = 8;
inline constexpr int kLargestDim = 128;
bool fits(const AttentionShape& shape);

/// A call and where its rows are: heads and rows count from the first that a buffer holds.
struct SdpaCall {
  SdpaShape shape;
  int task = 0;  ///< index in the list: names the buffers and the map of positions
  std::int64_t q_begin = 0;
  std::int64_t k_begin = 0;
  int q_head = 0;
  int k_head = 0;
};

/// Calls that together compute each pair of the tasks once. Every query of a call sees a key.
/// @throws Error(usage) where cuDNN does not compute the pass for one of them
std::vector<SdpaCall> sdpa_calls(Pass pass, const AttentionShape& shape,
                                 const TaskList<bfloat16>& list);

}  // namespace cadenza::kernels::cudnn
