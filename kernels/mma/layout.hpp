// SPDX-License-Identifier: Apache-2.0
// Places of elements of tiles: in shared memory, and in the registers of a warp that computes
// mma.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type").
#pragma once

#include "../device/problem.hpp"

namespace cadenza::kernels::mma {

using namespace device;

inline constexpr int kChunk = 8;  ///< elements read at once: 16 bytes

/// Place of element (row, column) of a tile [rows, kDim] in shared memory. The chunks of a row are
/// permuted by its number, so that the eight rows that one load of a matrix reads are in different
/// banks.
template <int kDim>
CADENZA_DEVICE constexpr int at(int row, int column) {
  static_assert(kDim % 32 == 0);
  const int turn = kDim % 64 == 0 ? row & 7 : (row >> 1) & 3;
  return row * kDim + ((column / kChunk) ^ turn) * kChunk + column % kChunk;
}

/// Place of the element `columns` after the one at `place`, where `columns` is a multiple of 16 and
/// the place is one of a row's first 16. Few places of a row differ by an amount unknown at compile
/// time, so few registers hold them.
template <int kDim>
CADENZA_DEVICE constexpr int after(int place, int columns) {
  constexpr int kTurned = kDim % 64 == 0 ? 64 : 32;  // columns that a row's number permutes
  return (place ^ columns % kTurned) + columns / kTurned * kTurned;
}

/// Row and first column that a lane addresses when a warp loads four 8 x 8 matrices.
struct LaneAddress {
  int row = 0;
  int column = 0;
};

/// Left factor [16 rows, 16 deep] of a tile with one row per row of the result.
CADENZA_DEVICE constexpr LaneAddress left_address(int lane) {
  return {lane % 16, lane / 16 * kChunk};
}

/// Right factors [16 deep, 2 x 8 columns] of a tile with one row per column of the result.
CADENZA_DEVICE constexpr LaneAddress right_address(int lane) {
  return {lane % 8 + lane / 16 * 8, lane / 8 % 2 * kChunk};
}

/// Right factors [16 deep, 2 x 8 columns] of a tile with one row per element of depth (loaded
/// transposed).
CADENZA_DEVICE constexpr LaneAddress transposed_address(int lane) {
  return {lane % 16, lane / 16 * kChunk};
}

/// First row of a lane's part of a fragment.
CADENZA_DEVICE constexpr int sum_row(int lane) {
  return lane / 4;
}

}  // namespace cadenza::kernels::mma
