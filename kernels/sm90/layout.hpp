// SPDX-License-Identifier: Apache-2.0
// Places of tiles in shared memory, and the descriptors by which products name them (PTX ISA,
// "Asynchronous warpgroup level matrix shared memory layout").
//
// A tile [rows, D] is D/64 panels [rows, 64], one after another; a row of a panel is 128 bytes. The
// copy engine permutes the eight 16-byte chunks of a row by its number modulo 8 (128-byte swizzle):
// bits 4 to 6 of an address are exclusive-or'ed with bits 7 to 9, so panels are aligned to 1024
// bytes.
#pragma once

#include "problem.hpp"

namespace cadenza::kernels::sm90 {

inline constexpr int kPanel = 64;        ///< elements of a row of a panel
inline constexpr int kRowBytes = 128;    ///< of a row of a panel
inline constexpr int kAtomBytes = 1024;  ///< eight rows: the swizzle's period
inline constexpr int kDepth = 16;        ///< of one multiplication instruction

CADENZA_DEVICE constexpr int panel_bytes(int rows) {
  return rows * kRowBytes;
}
CADENZA_DEVICE constexpr int tile_bytes(int rows, int head_dim) {
  return head_dim / kPanel * panel_bytes(rows);
}

/// Returns the place of the byte that would be at `address` without the swizzle.
CADENZA_DEVICE constexpr unsigned swizzled(unsigned address) {
  return address ^ ((address >> 7 & 7) << 4);
}

/// Returns a matrix descriptor with the 128-byte swizzle. Offsets in bytes, see below.
CADENZA_DEVICE constexpr std::uint64_t descriptor(unsigned address, unsigned leading,
                                                  unsigned stride) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  return static_cast<std::uint64_t>((address & 0x3ffffu) >> 4) |
         static_cast<std::uint64_t>(leading >> 4) << 16 |
         static_cast<std::uint64_t>(stride >> 4) << 32 | kSwizzle128;
}

/// Returns rows of a tile as a factor whose depth is head_dim ("K-major"): from row `row` on,
/// elements [0, 16) of each; the next ones are depth_bytes further. Stride: from eight rows to the
/// next eight; leading: not used.
CADENZA_DEVICE constexpr std::uint64_t rows_factor(unsigned tile, int row) {
  return descriptor(tile + static_cast<unsigned>(row * kRowBytes), 16, kAtomBytes);
}
CADENZA_DEVICE constexpr int depth_bytes(int tile_rows, int depth) {
  return depth / kPanel * panel_bytes(tile_rows) + depth % kPanel * 2;
}

/// Returns a tile as a right factor whose depth is its rows ("MN-major"): rows [0, 16), all
/// elements; later ones are kRowBytes per row further. Leading: from a panel to the next; stride:
/// from eight rows to the next eight.
CADENZA_DEVICE constexpr std::uint64_t columns_factor(unsigned tile, int tile_rows) {
  return descriptor(tile, static_cast<unsigned>(panel_bytes(tile_rows)), kAtomBytes);
}

/// Returns the descriptor `bytes` behind another, both in one tile.
CADENZA_DEVICE constexpr std::uint64_t advanced(std::uint64_t descriptor, int bytes) {
  return descriptor + static_cast<std::uint64_t>(bytes >> 4);
}

/// First row of a thread's fragment of a result [64, N].
CADENZA_DEVICE constexpr int sum_row(int thread) {
  return thread % kWarpgroup / 32 * 16 + thread % 32 / 4;
}

}  // namespace cadenza::kernels::sm90
