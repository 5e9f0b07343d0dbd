// SPDX-License-Identifier: Apache-2.0
// What AMX can do at most: products of tiles with nothing around them.
#pragma once

namespace cadenza::bench {

/// FLOPs of a block of 2 x 2 tiles and 32 elements of depth.
inline constexpr double kAmxBlockFlops = 2.0 * 32 * 32 * 32;
/// What a thread reads again and again in multiply_from_cache, 64-byte aligned.
inline constexpr int kAmxCacheBytes = 16384;

/// `times` blocks whose factors stay in tiles.
void multiply_in_registers(int times);
/// `times` blocks whose four factor tiles are loaded anew, 64 bytes a row, from `data`.
void multiply_from_cache(const void* data, int times);

}  // namespace cadenza::bench
