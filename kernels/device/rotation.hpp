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

/// Neighbours that are read and written at once. head_dim / 2 is a multiple of their number, and
/// arrays begin at multiples of 16 bytes.
inline constexpr int kNeighbours = 8;

template <typename T>
struct alignas(16) Neighbours {
  T values[kNeighbours];
};

template <typename T>
CADENZA_DEVICE const Neighbours<T>& neighbours(const T* at) {
  return *reinterpret_cast<const Neighbours<T>*>(at);
}

/// Rotates pairs (d, d + D/2) of kNeighbours neighbouring d of one row and head: those of number
/// `part`, d first, then heads, then rows. There are fewer than 2^32 of them, on any device.
template <typename Thread>
CADENZA_DEVICE void rotate_pairs(const Thread& thread, const Problem& problem,
                                 const Rotation& rotation, std::uint32_t part) {
  const auto half = static_cast<std::uint32_t>(problem.half);
  const auto heads = static_cast<std::uint32_t>(problem.queries[rotation.queries].heads);
  const std::uint32_t d = part % (half / kNeighbours) * kNeighbours;
  const std::uint32_t of_rows = part / (half / kNeighbours);
  const std::int64_t table = table_at(rotation, rotation.begin + of_rows / heads, problem.half) + d;
  const std::int64_t at = (rotation.begin * heads + of_rows) * 2 * half + d;
  const Neighbours<Bits> low = neighbours(rotation.from + at);
  const Neighbours<Bits> high = neighbours(rotation.from + at + half);
  const Neighbours<float> cos = neighbours(problem.cos + table);
  const Neighbours<float> sin = neighbours(problem.sin + table);
  Neighbours<Bits> rotated_low, rotated_high;
  CADENZA_UNROLL
  for (int i = 0; i < kNeighbours; ++i) {
    const float first = to_float(low.values[i]), second = to_float(high.values[i]);
    const unsigned both = thread.pack(first * cos.values[i] - second * sin.values[i],
                                      second * cos.values[i] + first * sin.values[i]);
    rotated_low.values[i] = static_cast<Bits>(both & 0xffffu);
    rotated_high.values[i] = static_cast<Bits>(both >> 16);
  }
  *reinterpret_cast<Neighbours<Bits>*>(rotation.rotated + at) = rotated_low;
  *reinterpret_cast<Neighbours<Bits>*>(rotation.rotated + at + half) = rotated_high;
}

/// Rotates all pairs of a call's rotations, if there is a table. Arrays of the problem are the
/// device's.
void launch_rotation(const Problem& problem, const std::vector<Rotation>& rotations,
                     cudaStream_t stream);

}  // namespace cadenza::kernels::device
