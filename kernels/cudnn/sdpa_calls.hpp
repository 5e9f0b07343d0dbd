// SPDX-License-Identifier: Apache-2.0
// Tasks as calls of scaled-dot-product attention as cuDNN knows it: a rectangle of queries and keys
// in strided rows, with at most two diagonal edges. No cuDNN here, so that every build tests it.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "cadenza/base/pass.hpp"
#include "cadenza/kernels/attention.hpp"

namespace cadenza::kernels::cudnn {

/// head_dims that cuDNN computes on every device from sm_80 on.
inline constexpr int kDimStep = 8;
inline constexpr int kLargestDim = 128;
bool fits(const AttentionShape& shape);

/// All that a plan of cuDNN depends on. Both diagonals are aligned at the bottom right: the last
/// query stands at the last key.
struct SdpaShape {
  int heads = 1;
  int kv_heads = 1;
  int head_dim = 1;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t q_row = 0;  ///< elements from one row of q and dO to the next
  std::int64_t k_row = 0;  ///< the same of k and v
  bool causal = false;     ///< no key after the query's own
  std::int64_t left = 0;   ///< so many keys up to the query's own at most; 0: no such edge

  bool sees(std::int64_t query, std::int64_t key) const {
    const std::int64_t own = query + keys - queries;
    return (!causal || key <= own) && (left == 0 || key > own - left);
  }
  friend auto operator<=>(const SdpaShape&, const SdpaShape&) = default;
};

/// Where its rows are. Heads and rows count from the first that a buffer holds.
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
