// SPDX-License-Identifier: Apache-2.0
// The heads of core attention and the size of what is stored of them.
#pragma once

#include "cadenza/base/range.hpp"

namespace cadenza {

/// Heads that a rank holds, and bytes of their numbers. Plans count bytes with it, kernels know the
/// types of what they are given and read the first three alone.
struct AttentionShape {
  int heads = 1;     ///< query heads
  int kv_heads = 1;  ///< divides heads; query head h reads key head h / (heads / kv_heads)
  int head_dim = 1;
  int element_bytes = 4;      ///< of Q, K, V and dO, which are only read
  int accumulator_bytes = 4;  ///< of results, LSE and delta, which are sums; at least element_bytes
  int group() const { return heads / kv_heads; }
  /// The key heads that a range of query heads reads.
  Range key_heads(Range queries) const {
    return {queries.begin / group(), (queries.end + group() - 1) / group()};
  }
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

}  // namespace cadenza
