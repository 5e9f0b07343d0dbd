// SPDX-License-Identifier: Apache-2.0
// A call of scaled-dot-product attention: its shape and its rows. Without Kokkos, for the file that
// includes cuDNN.
#pragma once

#include <compare>
#include <cstdint>

namespace cadenza {
struct bfloat16;
}

namespace cadenza::kernels::cudnn {

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
  /// Said as well: nvcc calls one that it has not made.
  friend bool operator==(const SdpaShape&, const SdpaShape&) = default;
};

/// Device pointers to the first row and head of a call. Rows of q and dout are shape.q_row apart,
/// those of k and v shape.k_row; out, dq, dk and dv hold the call's rows and heads alone:
/// [rows, heads, D]. stats: log of the sum of a row's exponentials, [heads, queries].
struct SdpaRows {
  const bfloat16* q = nullptr;
  const bfloat16* k = nullptr;
  const bfloat16* v = nullptr;
  bfloat16* out = nullptr;  ///< forward: written; backward: read
  float* stats = nullptr;   ///< the same
  const bfloat16* dout = nullptr;
  bfloat16* dq = nullptr;  ///< written, as dk and dv
  bfloat16* dk = nullptr;
  bfloat16* dv = nullptr;
};

}  // namespace cadenza::kernels::cudnn
