// SPDX-License-Identifier: Apache-2.0
// Softmax of a fragment of unscaled scores: the maximum and sum of a query grow with every tile of
// keys (FlashAttention-2, algorithm 1), or probabilities are recomputed from the merged lse
// (algorithm 2). Rows are queries, but for dK and dV: there columns are.
#pragma once

#include "mask.hpp"

namespace cadenza::kernels::device {

/// Maximum of a row that has seen keys if all its scores overflowed to -inf: -inf itself is that of
/// a row that has seen none.
inline constexpr float kLeast = -__FLT_MAX__;
inline constexpr float kLog2e = 1.4426950408889634f;

/// Raises the maxima of two rows by their scores. Ignores NaN scores: they show in the sum. A row
/// that has seen a key must have a maximum of at least kLeast before.
template <int kTiles, typename Thread>
CADENZA_DEVICE void raise_row_max(const Thread& thread, const float (&scores)[kTiles][4],
                                  float (&row_max)[2]) {
  // Separate maxima of even and odd columns: short chains of dependent instructions.
  float highest[2][2] = {{row_max[0], row_max[0]}, {row_max[1], row_max[1]}};
  CADENZA_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    CADENZA_UNROLL
    for (int i = 0; i < 4; ++i) {
      highest[i / 2][i % 2] = fmaxf(highest[i / 2][i % 2], scores[tile][i]);
    }
  }
  CADENZA_UNROLL
  for (int half = 0; half < 2; ++half) row_max[half] = fmaxf(highest[half][0], highest[half][1]);
  CADENZA_UNROLL
  for (int bits = 1; bits < 4; bits *= 2) {
    CADENZA_UNROLL
    for (int half = 0; half < 2; ++half) {
      row_max[half] = fmaxf(row_max[half], thread.exchanged(row_max[half], bits));
    }
  }
}

/// Returns the number to subtract from a row's scores. A row that saw no key has no maximum: its
/// scores make its probabilities 0.
CADENZA_DEVICE float subtracted(float row_max) {
  return row_max == -kInfinity ? 0 : row_max;
}

/// How to compute the power of 2 of a score's distance to its row's maximum. `fused` takes one
/// instruction and is relative to the same rounded product for a whole row; `difference_first`
/// subtracts before it multiplies, so that the largest score gives exactly 0, however large scores
/// are.
enum class Exponent { fused, difference_first };

/// Returns e^(score - from), `scale` in units of log2.
template <Exponent kExponent, typename Thread>
CADENZA_DEVICE float power(const Thread& thread, float score, float from, float scale) {
  return thread.exp2(kExponent == Exponent::fused ? thread.fma(score, scale, -(from * scale))
                                                  : (score - from) * scale);
}

/// Turns scores into powers and adds them up, those of a row in kChains chains, whose instructions
/// do not wait for each other.
template <Exponent kExponent, int kChains, int kTiles, typename Thread>
CADENZA_DEVICE void exponentiate(const Thread& thread, float scale, const float (&from)[2],
                                 float (&scores)[kTiles][4], float (&added)[2]) {
  static_assert(kChains == 1 || kChains == 2);
  float sums[2][kChains] = {};
  CADENZA_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    CADENZA_UNROLL
    for (int i = 0; i < 4; ++i) {
      float& score = scores[tile][i];
      score = power<kExponent>(thread, score, from[i / 2], scale);
      sums[i / 2][i % kChains] += score;
    }
  }
  CADENZA_UNROLL
  for (int half = 0; half < 2; ++half) {
    added[half] = kChains == 1 ? sums[half][0] : sums[half][0] + sums[half][kChains - 1];
  }
}

/// Decays earlier sums by the growth of a row's maximum.
template <int kTiles>
CADENZA_DEVICE void rescale_o(const float (&decay)[2], float (&out)[kTiles][4]) {
  CADENZA_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    CADENZA_UNROLL
    for (int i = 0; i < 4; ++i) out[tile][i] *= decay[i / 2];
  }
}

/// Returns lse in units of log2, for probability(). A row without keys has lse = -inf; +inf makes
/// all its probabilities 0.
CADENZA_DEVICE float usable_lse(float lse) {
  return lse == -kInfinity ? kInfinity : lse * kLog2e;
}

/// Loads usable lse, and delta, of a thread's two rows of a unit of queries; `row` is the first.
CADENZA_DEVICE void load_statistics(const Problem& problem, const Unit& unit, int row,
                                    float (&lse)[2], float (&delta)[2]) {
  const Queries& buffer = problem.queries[unit.buffer];
  const auto from_lse = head_rows<1>(buffer.lse, buffer, unit.begin, unit.head_begin);
  const auto from_delta = head_rows<1>(buffer.delta, buffer, unit.begin, unit.head_begin);
  CADENZA_UNROLL
  for (int half = 0; half < 2; ++half, row += 8) {
    const bool inside = row < unit.end - unit.begin;
    lse[half] = inside ? usable_lse(from_lse.data[row * from_lse.stride]) : kInfinity;
    delta[half] = inside ? from_delta.data[row * from_delta.stride] : 0;
  }
}

/// Returns e^(score * scale - lse), `scale` and `lse` in units of log2, at most 1: it could exceed
/// 1 only by rounding. NaN stays.
template <typename Thread>
CADENZA_DEVICE float probability(const Thread& thread, float score, float scale, float lse) {
  const float above = thread.fma(score, scale, -lse);
  return thread.exp2(above > 0 ? 0 : above);
}

/// Turns scores into probabilities. @param lse  lse(half, column), usable
template <int kTiles, typename Thread, typename Lse>
CADENZA_DEVICE void recompute_probabilities(const Thread& thread, float scale, const Lse& lse,
                                            float (&scores)[kTiles][4]) {
  CADENZA_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    CADENZA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int column = tile * 8 + sum_column(thread.index()) + i % 2;
      scores[tile][i] = probability(thread, scores[tile][i], scale, lse(i / 2, column));
    }
  }
}

/// Turns gradients of probabilities into those of scores times 1 / scale. @param delta  delta(half,
/// column)
template <int kTiles, typename Thread, typename Delta>
CADENZA_DEVICE void subtract_delta(const Thread& thread, const float (&probabilities)[kTiles][4],
                                   const Delta& delta, float (&gradients)[kTiles][4]) {
  CADENZA_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    CADENZA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int column = tile * 8 + sum_column(thread.index()) + i % 2;
      float& gradient = gradients[tile][i];
      gradient = probabilities[tile][i] * (gradient - delta(i / 2, column));
    }
  }
}

/// Sets gradients to 0 where probabilities are 0, in a tile that is partly unseen: gradients of
/// unseen pairs may be anything, also NaN.
template <int kTiles>
CADENZA_DEVICE void clear_unseen(const float (&probabilities)[kTiles][4],
                                 float (&gradients)[kTiles][4]) {
  CADENZA_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    CADENZA_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (probabilities[tile][i] == 0) gradients[tile][i] = 0;
    }
  }
}

}  // namespace cadenza::kernels::device
