// SPDX-License-Identifier: Apache-2.0
// A call of attention in the form that the kernels for tensor cores read: plain numbers and device
// pointers, without Kokkos, so that nvcc and the host's compiler take the same headers.
#pragma once

#include <cstdint>

#include "../tasks/unit.hpp"

#ifdef __CUDACC__
#define CADENZA_DEVICE __device__ __forceinline__
#define CADENZA_UNROLL _Pragma("unroll")
#define CADENZA_ROLL _Pragma("unroll 1")  // values hoisted from several iterations would not fit
#else
#define CADENZA_DEVICE inline
#define CADENZA_UNROLL
#define CADENZA_ROLL
#endif

namespace cadenza::kernels::device {

using Bits = std::uint16_t;  ///< a bfloat16

inline constexpr int kMostRows = 256;  ///< of a unit, at most; a multiple of every pass' rows
/// Queries after which sums of dK and dV are added to memory: a sum of sums of so many terms loses
/// far less than the rounding of its factors.
inline constexpr int kQueriesPerFlush = 4096;

/// Passes over the units of a call, each a launch.
enum class Grid { forward, query_gradient, key_gradient };

/// Rows of queries of one document: a copy of kernels::QueryRows.
struct Queries {
  std::int64_t begin = 0;  ///< token of the first row
  int first_head = 0;      ///< rows hold heads [first_head, first_head + heads)
  int heads = 0;
  float* out = nullptr;
  float* lse = nullptr;
  const Bits* dout = nullptr;
  const float* delta = nullptr;
  float* dq = nullptr;
  friend bool operator==(const Queries&, const Queries&) = default;
};

/// Rows of keys and values of one document: a copy of kernels::KeyRows.
struct Keys {
  std::int64_t begin = 0;
  int first_head = 0;
  int heads = 0;
  const Bits* k = nullptr;
  const Bits* v = nullptr;
  float* dk = nullptr;
  float* dv = nullptr;
  friend bool operator==(const Keys&, const Keys&) = default;
};

/// Queries of one buffer under one map of positions, rotated once for a whole call: those rows of
/// the buffer in tiles that some task of the map touches.
struct Rotation {
  int queries = 0;             ///< index of the buffer
  const Bits* from = nullptr;  ///< the buffer's first row: [rows, heads, D], not rotated
  Bits* rotated = nullptr;     ///< the same rows, rotated; without a rotation: `from`
  std::int64_t begin = 0;      ///< first row
  std::int64_t rows = 0;
  std::int64_t pairs = 0;  ///< element pairs to rotate: rows * heads * half
  // Row r takes row clamp(first + r * step, 0, last) of the table.
  std::int64_t first = 0;
  std::int64_t step = 0;
  std::int64_t last = 0;
  friend bool operator==(const Rotation&, const Rotation&) = default;
};

/// A task: queries [q_begin, q_end) see keys of [k_begin, k_end) with low <= key - query <= high.
struct Entry {
  std::int64_t q_begin = 0, q_end = 0, k_begin = 0, k_end = 0;
  std::int64_t low = 0, high = 0;
  int head_begin = 0, head_end = 0;  ///< query heads
  int queries = 0;                   ///< indices of buffers
  int keys = 0;
  int rotation = 0;
  int pattern = 0;  ///< sparse calls: its pattern of query head 0; those of other heads follow
  friend bool operator==(const Entry&, const Entry&) = default;
};

/// A call. A block owns a unit: one query head (forward, dQ), or the query heads of a key-value
/// head (dK, dV). No two blocks write the same element.
struct Problem {
  int half = 0;  ///< D / 2 if queries are rotated; otherwise 0
  float scale = 1;
  const float* cos = nullptr;  ///< [positions, half]
  const float* sin = nullptr;
  const Queries* queries = nullptr;
  const Keys* keys = nullptr;
  const Rotation* rotations = nullptr;
  const Entry* entries = nullptr;
  const Unit* units = nullptr;
  const int* order = nullptr;  ///< entries of the units, grouped by rotation in each
};

/// Rows of one head in memory: element d of row r at data[r * stride + d].
template <typename Element>
struct HeadRows {
  Element* data = nullptr;
  std::int64_t stride = 0;
};

/// Returns the rows of a head from `token` on, in an array [rows, heads, kDim] of the buffer.
template <int kDim, typename Element, typename Buffer>
CADENZA_DEVICE HeadRows<Element> head_rows(Element* array, const Buffer& buffer, std::int64_t token,
                                           int head) {
  const std::int64_t row = (token - buffer.begin) * buffer.heads + head - buffer.first_head;
  return {array + row * kDim, static_cast<std::int64_t>(buffer.heads) * kDim};
}

/// First element of the table for row `row` of the rotation.
CADENZA_DEVICE std::int64_t table_at(const Rotation& rotation, std::int64_t row, int half) {
  const std::int64_t at = rotation.first + row * rotation.step;
  return (at < 0 ? 0 : at < rotation.last ? at : rotation.last) * half;
}

}  // namespace cadenza::kernels::device
