// SPDX-License-Identifier: Apache-2.0
// The part of a product's result that a thread holds: mma.m16n8k16 and wgmma give it the same
// elements of 16 rows. A fragment of 8 kTiles columns is float[kTiles][4], four sums for every
// eight columns: 0 and 1 belong to the thread's first row, 2 and 3 to its second, eight rows later
// ("half" 0 and 1). Their columns are sum_column and the next.
#pragma once

#include "problem.hpp"

namespace cadenza::kernels::device {

CADENZA_DEVICE constexpr int sum_column(int thread) {
  return thread % 4 * 2;
}

template <int kTiles>
CADENZA_DEVICE void clear(float (&sums)[kTiles][4]) {
  CADENZA_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    CADENZA_UNROLL
    for (int i = 0; i < 4; ++i) sums[tile][i] = 0;
  }
}

/// Rounds columns [8 tile, 8 tile + 16) to bfloat16, in their places as a left factor.
template <int kTiles, typename Thread>
CADENZA_DEVICE void pack(const Thread& thread, const float (&sums)[kTiles][4], int tile,
                         unsigned (&packed)[4]) {
  CADENZA_UNROLL
  for (int part = 0; part < 4; ++part) {
    const float* pair = &sums[tile + part / 2][part % 2 * 2];
    packed[part] = thread.pack(pair[0], pair[1]);
  }
}

/// Rounds all columns.
template <int kTiles, typename Thread>
CADENZA_DEVICE void pack(const Thread& thread, const float (&sums)[kTiles][4],
                         unsigned (&packed)[kTiles / 2][4]) {
  CADENZA_UNROLL
  for (int step = 0; step < kTiles / 2; ++step) pack(thread, sums, 2 * step, packed[step]);
}

}  // namespace cadenza::kernels::device
