// SPDX-License-Identifier: Apache-2.0
// The numbers before and behind a call of cuDNN, one element or one row and head each.
#pragma once

#include "../tasks/buffers.hpp"
#include "cadenza/kernels/attention.hpp"

namespace cadenza::kernels::cudnn {

/// Rows and heads of a call in a buffer of the caller's, and packed beside it.
struct Window {
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t held = 0;  ///< heads of the buffer's rows

  std::int64_t size() const { return rows * heads; }
  /// Of the item-th pair of row and head, counted row by row: where the buffer has it.
  KOKKOS_INLINE_FUNCTION std::int64_t in_buffer(std::int64_t item) const {
    return item / heads * held + item % heads;
  }
  /// The same in [heads, rows].
  KOKKOS_INLINE_FUNCTION std::int64_t by_head(std::int64_t item) const {
    return item % heads * rows + item / heads;
  }
};

/// Rotates pairs (d, d + D/2) of rows by their positions; direction -1: back.
struct Rotary {
  const float* cos = nullptr;  ///< null: no rotation
  const float* sin = nullptr;
  std::int64_t half = 0;
  TableRows table;

  struct Pair {
    float low, high;
  };
  KOKKOS_INLINE_FUNCTION Pair rotated(Pair from, std::int64_t row, std::int64_t d,
                                      float direction) const {
    if (cos == nullptr) return from;
    const std::int64_t at = table.of(row) * half + d;
    const float c = cos[at];
    const float s = direction * sin[at];
    return {from.low * c - from.high * s, from.high * c + from.low * s};
  }
};

/// Item: a pair of elements of a row and head of the buffer.
struct RotateQueries {
  Rotary rotary;
  std::int64_t heads;
  const bfloat16* q;
  bfloat16* rotated;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t d = item % rotary.half;
    const std::int64_t row_and_head = item / rotary.half;
    const std::int64_t at = row_and_head * 2 * rotary.half + d;
    const Rotary::Pair pair =
        rotary.rotated({static_cast<float>(q[at]), static_cast<float>(q[at + rotary.half])},
                       row_and_head / heads, d, 1);
    rotated[at] = bfloat16(pair.low);
    rotated[at + rotary.half] = bfloat16(pair.high);
  }
};

/// Item: a row and head. Merges lse, and leaves what out (old) and the call's own output count for
/// in `old_factors` and in place of the call's stats.
struct MergeLse {
  Window window;
  float* lse;
  float* stats;
  float* old_factors;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t item) const {
    float& merged = lse[window.in_buffer(item)];
    float& own = stats[window.by_head(item)];
    const float peak = Kokkos::fmax(merged, own);
    const float sum = Kokkos::exp(merged - peak) + Kokkos::exp(own - peak);
    old_factors[item] = Kokkos::exp(merged - peak) / sum;
    own = Kokkos::exp(own - peak) / sum;
    merged = peak + Kokkos::log(sum);
  }
};

/// Item: an element of a row and head.
struct MergeOut {
  Window window;
  std::int64_t dim;
  float* out;
  const bfloat16* own;
  const float* own_factors;
  const float* old_factors;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t row_and_head = item / dim;
    const float old = old_factors[row_and_head];
    float& merged = out[window.in_buffer(row_and_head) * dim + item % dim];
    merged = (old == 0 ? 0 : old * merged) +  // nobody may have written it yet
             own_factors[window.by_head(row_and_head)] * static_cast<float>(own[item]);
  }
};

/// Item: a row and head. cuDNN takes O to sum dO * O itself; callers have the sum, `delta`, and
/// servers have no O. Any O with the same sum gives the same gradients: delta / |dO|^2 * dO is the
/// smallest. As all terms of its sum have one sign, its rounding changes the sum by less than
/// rounding O itself would.
struct PrepareRows {
  Window window;
  std::int64_t dim;
  const float* lse;
  const float* delta;
  const bfloat16* dout;
  float* stats;
  float* factors;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t at = window.in_buffer(item);
    double square = 0;
    for (std::int64_t d = 0; d < dim; ++d) {
      const auto value = static_cast<double>(static_cast<float>(dout[at * dim + d]));
      square += value * value;
    }
    constexpr double kNothing = 1e-70;  // dO of 1e-35: 1 / dO is near float's largest number
    factors[item] =
        square > kNothing ? static_cast<float>(static_cast<double>(delta[at]) / square) : 0.0F;
    // A row that has seen no key has no probability: e^(logit - 1e30).
    stats[window.by_head(item)] =
        lse[at] == -Kokkos::Experimental::infinity_v<float> ? 1e30F : lse[at];
  }
};

/// Item: an element of a row and head.
struct StandInForOut {
  Window window;
  std::int64_t dim;
  const bfloat16* dout;
  const float* factors;
  bfloat16* out;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t row_and_head = item / dim;
    const std::int64_t at = window.in_buffer(row_and_head) * dim + item % dim;
    out[item] = bfloat16(factors[row_and_head] * static_cast<float>(dout[at]));
  }
};

/// Item: a pair of elements of a row and head.
struct AddQueryGradient {
  Window window;
  Rotary rotary;
  const bfloat16* own;
  float* dq;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t half = rotary.half;
    const std::int64_t d = item % half;
    const std::int64_t row_and_head = item / half;
    const std::int64_t from = row_and_head * 2 * half + d;
    const std::int64_t to = window.in_buffer(row_and_head) * 2 * half + d;
    const Rotary::Pair pair =
        rotary.rotated({static_cast<float>(own[from]), static_cast<float>(own[from + half])},
                       row_and_head / window.heads, d, -1);
    dq[to] += pair.low;
    dq[to + half] += pair.high;
  }
};

/// Item: an element of a row and key-value head.
struct AddKeyGradients {
  Window window;
  std::int64_t dim;
  const bfloat16* own_dk;
  const bfloat16* own_dv;
  float* dk;
  float* dv;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t to = window.in_buffer(item / dim) * dim + item % dim;
    dk[to] += static_cast<float>(own_dk[item]);
    dv[to] += static_cast<float>(own_dv[item]);
  }
};

}  // namespace cadenza::kernels::cudnn
