// SPDX-License-Identifier: Apache-2.0
// Rotates queries once for every map of positions of a call, for all blocks that read them.
#pragma once

#include <vector>

#include "problem.hpp"

using cudaStream_t = struct CUstream_st*;

namespace cadenza::kernels::device {

CADENZA_DEVICE float to_float(Bits bits) {
  union {
    std::uint32_t word;
    float value;
  } wide;
  wide.word = static_cast<std::uint32_t>(bits) << 16;
  return wide.value;
}

/// Rotates pair (d, d + D/2) of one row and head: number `pair`, d first, then heads, then rows.
template <typename Thread>
CADENZA_DEVICE void rotate_pair(const Thread& thread, const Problem& problem,
                                const Rotation& rotation, std::int64_t pair) {
  const int half = problem.half;
  const int heads = problem.queries[rotation.queries].heads;
  const std::int64_t d = pair % half;
  const std::int64_t row_and_head = rotation.begin * heads + pair / half;
  const std::int64_t table = table_at(rotation, row_and_head / heads, half) + d;
  const std::int64_t at = row_and_head * 2 * half + d;
  const float low = to_float(rotation.from[at]);
  const float high = to_float(rotation.from[at + half]);
  const float cos = problem.cos[table];
  const float sin = problem.sin[table];
  const unsigned both = thread.pack(low * cos - high * sin, high * cos + low * sin);
  rotation.rotated[at] = static_cast<Bits>(both & 0xffffu);
  rotation.rotated[at + half] = static_cast<Bits>(both >> 16);
}

/// Rotates all pairs of a call's rotations, if there is a table. Arrays of the problem are the
/// device's.
void launch_rotation(const Problem& problem, const std::vector<Rotation>& rotations,
                     cudaStream_t stream);

}  // namespace cadenza::kernels::device
