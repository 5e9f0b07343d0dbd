// SPDX-License-Identifier: Apache-2.0
// Gradients of gathered keys. Heads of a group select columns of their own, so several units may
// have the same key: each writes rows of its own, which a kernel after the pass adds to dK and dV
// in one order.
#pragma once

#include "sparse_problem.hpp"

using cudaStream_t = struct CUstream_st*;

namespace cadenza::kernels::device {

/// Adds the parts of one number to the gradients in memory: `number` counts elements of the row
/// [dK, dV] of a sum, then sums.
CADENZA_DEVICE void add_column_sum(const SparseProblem& problem, int head_dim,
                                   std::int64_t number) {
  const ColumnSum& sum = problem.sums[number / (2 * head_dim)];
  const auto element = static_cast<int>(number % (2 * head_dim));
  const Keys& buffer = problem.keys[sum.keys];
  const std::int64_t row =
      (std::int64_t{sum.row} * buffer.heads + sum.kv_head - buffer.first_head) * head_dim;
  float* to = element < head_dim ? buffer.dk + row + element : buffer.dv + row + element - head_dim;
  float total = 0;
  for (int part = sum.first; part < sum.end; ++part) {
    const std::int64_t from = std::int64_t{problem.summed[part]} * 2 * head_dim;
    total += problem.column_gradients[from + element];
  }
  *to += total;
}

/// Adds all sums of a call. Arrays of the problem are the device's.
void launch_column_sums(const SparseProblem& problem, int head_dim, int sums, cudaStream_t stream);

}  // namespace cadenza::kernels::device
