// SPDX-License-Identifier: Apache-2.0
// Writes the sums of a unit to memory. A thread has two rows of a fragment: `row` of the unit and
// the eighth after it; rows outside the unit are skipped.
#pragma once

#include "softmax.hpp"

namespace cadenza::kernels::device {

/// Replaces elements i of 2 of every eighth place of a row in memory by value(old, tile, i). Reads
/// all before it writes one: otherwise a thread would wait for each of them.
template <int kTiles, typename Value>
CADENZA_DEVICE void update_row(float* to, const Value& value) {
  float row[kTiles][2];
  CADENZA_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    CADENZA_UNROLL
    for (int i = 0; i < 2; ++i) row[tile][i] = value(to[tile * 8 + i], tile, i);
  }
  CADENZA_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    CADENZA_UNROLL
    for (int i = 0; i < 2; ++i) to[tile * 8 + i] = row[tile][i];
  }
}

/// Adds value(tile, i) to the same elements as update_row.
template <int kTiles, typename Value>
CADENZA_DEVICE void add_to_row(float* to, const Value& value) {
  update_row<kTiles>(to, [&](float old, int tile, int i) { return old + value(tile, i); });
}

/// Weights that merge a row into memory: its sums times `now` plus the memory's values times
/// `before`.
struct RowMerge {
  float now;
  float before;
  float lse;

  /// Returns the new value of `out` in memory with this call's sum.
  CADENZA_DEVICE float merged(float out, float sum) const {
    const float old = before > 0 ? out * before : 0;  // 0: nothing was there
    return old + sum * now;
  }
};

/// Merges sums of a row with its lse in memory. `total` is the sum of e^(logit - row_max); 0 if all
/// logits are -inf (an overflow): then there is no softmax, but NaN.
template <typename Thread>
CADENZA_DEVICE RowMerge merge_row(const Thread& thread, float row_max, float total, float lse) {
  const float own = total > 0 ? row_max + thread.log(total) : __builtin_nanf("");
  const float high = own < lse ? lse : own;
  const float now = thread.exp(own - high);
  const float before = thread.exp(lse - high);
  const float both = now + before;
  return {now / (both * total), before / both, high + thread.log(both)};
}

/// Merges O and lse of a unit with the result of earlier calls in memory. A row that saw no key
/// keeps the memory's values. `row_sum` is this thread's part of the rows' sums.
template <int kTiles, typename Thread>
CADENZA_DEVICE void merge_out(const Thread& thread, const Problem& problem, const Unit& unit,
                              int row, const float (&row_max)[2], const float (&row_sum)[2],
                              const float (&sums)[kTiles][4]) {
  const Queries& buffer = problem.queries[unit.buffer];
  const auto out = head_rows<8 * kTiles>(buffer.out, buffer, unit.begin, unit.head_begin);
  const auto lse = head_rows<1>(buffer.lse, buffer, unit.begin, unit.head_begin);
  const auto inside = [&](int half) { return row + 8 * half < unit.end - unit.begin; };
  float before[2];
  CADENZA_UNROLL
  for (int half = 0; half < 2; ++half) {
    before[half] = inside(half) ? lse.data[(row + 8 * half) * lse.stride] : -kInfinity;
  }
  thread.warp_barrier();  // all lanes of a row have read its lse
  CADENZA_UNROLL
  for (int half = 0; half < 2; ++half) {
    float total = row_sum[half];
    total += thread.exchanged(total, 1);
    total += thread.exchanged(total, 2);
    const bool saw_nothing = row_max[half] == -kInfinity && total == 0;
    if (!inside(half) || saw_nothing) continue;
    const RowMerge merge = merge_row(thread, row_max[half] * problem.scale, total, before[half]);
    float* to = out.data + (row + 8 * half) * out.stride + sum_column(thread.index());
    update_row<kTiles>(to, [&](float old, int tile, int i) {
      return merge.merged(old, sums[tile][2 * half + i]);
    });
    if (thread.index() % 4 == 0) lse.data[(row + 8 * half) * lse.stride] = merge.lse;
  }
}

/// Adds scale * (dQ turned back) of a unit: the gradient of the unrotated queries. One thread has
/// the sums of both elements of a pair.
template <int kTiles, typename Thread>
CADENZA_DEVICE void add_query_gradient(const Thread& thread, const Problem& problem,
                                       const Unit& unit, const Rotation& rotation, int row,
                                       const float (&dq)[kTiles][4]) {
  const Queries& buffer = problem.queries[unit.buffer];
  const auto to = head_rows<8 * kTiles>(buffer.dq, buffer, unit.begin, unit.head_begin);
  const int column = sum_column(thread.index());
  CADENZA_UNROLL
  for (int half = 0; half < 2; ++half, row += 8) {
    if (row >= unit.end - unit.begin) continue;
    const std::int64_t table =
        table_at(rotation, unit.begin - buffer.begin + row, problem.half) + column;
    float turned[kTiles][2];
    CADENZA_UNROLL
    for (int tile = 0; tile < kTiles / 2; ++tile) {
      CADENZA_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int d = tile * 8 + i;
        const float low = dq[tile][2 * half + i] * problem.scale;
        const float high = dq[tile + kTiles / 2][2 * half + i] * problem.scale;
        const float cos = problem.half > 0 ? problem.cos[table + d] : 1;
        const float sin = problem.half > 0 ? problem.sin[table + d] : 0;
        turned[tile][i] = low * cos + high * sin;
        turned[tile + kTiles / 2][i] = high * cos - low * sin;
      }
    }
    add_to_row<kTiles>(to.data + row * to.stride + column,
                       [&](int tile, int i) { return turned[tile][i]; });
  }
}

/// Where dK and dV of a unit of keys go.
struct KeyGradientRows {
  HeadRows<float> dk;
  HeadRows<float> dv;
  std::int64_t rows = 0;
};

/// Returns the rows of the unit's keys.
template <int kDim>
CADENZA_DEVICE KeyGradientRows key_gradient_rows(const Problem& problem, const Unit& unit) {
  const Keys& buffer = problem.keys[unit.buffer];
  return {head_rows<kDim>(buffer.dk, buffer, unit.begin, unit.kv_head),
          head_rows<kDim>(buffer.dv, buffer, unit.begin, unit.kv_head), unit.end - unit.begin};
}

/// Adds dK and dV of a unit of keys: columns of head_dim from `column` on.
template <int kTiles, typename Thread>
CADENZA_DEVICE void add_key_gradients(const Thread& thread, const Problem& problem,
                                      const KeyGradientRows& to, int row, int column,
                                      const float (&dk)[kTiles][4], const float (&dv)[kTiles][4]) {
  column += sum_column(thread.index());
  CADENZA_UNROLL
  for (int half = 0; half < 2; ++half, row += 8) {
    if (row >= to.rows) continue;
    add_to_row<kTiles>(to.dk.data + row * to.dk.stride + column,
                       [&](int tile, int i) { return dk[tile][2 * half + i] * problem.scale; });
    add_to_row<kTiles>(to.dv.data + row * to.dv.stride + column,
                       [&](int tile, int i) { return dv[tile][2 * half + i]; });
  }
}

}  // namespace cadenza::kernels::device
