// SPDX-License-Identifier: Apache-2.0
// A call of attention in the form that the kernels for Hopper read: the problem of device/, and a
// tensor map for every array of rows that the copy engine (TMA) reads. Plain numbers, for nvcc and
// the host's compiler.
#pragma once

#include "../device/problem.hpp"

namespace cadenza::kernels::sm90 {

using namespace device;

inline constexpr int kWarpgroup = 128;  ///< threads that multiply together
inline constexpr int kConsumers = 2;    ///< warpgroups that compute; one more loads for them
inline constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
inline constexpr int kWarpgroupRows = 64;                      ///< rows of a product's result
inline constexpr int kUnitRows = kConsumers * kWarpgroupRows;  ///< queries or keys of a unit
inline constexpr int kKeys = 128;                              ///< keys of a tile for queries
inline constexpr int kQueries = 64;  ///< queries of a tile for keys: as many as registers hold

/// Place and form of an array of rows for the copy engine: a CUtensorMap on a device.
struct alignas(64) TensorMap {
  std::uint64_t words[16];
};

/// Contents of a tensor map: rows [rows, heads, head_dim] of bfloat16 from `data` on, of which a
/// copy takes `tile` rows of one head and 64 elements of each. Rows outside are zeros.
struct MappedRows {
  const Bits* data = nullptr;
  std::int64_t rows = 0;
  int heads = 0;
  int head_dim = 0;
  int tile = 0;
  friend bool operator==(const MappedRows&, const MappedRows&) = default;
};

/// Maps of an entry: only its own rows, so that a tile's rows outside it are zeros. Its keys and
/// values are in tiles of kKeys (forward, dQ), its queries and dO in tiles of kQueries (dK, dV).
enum EntryMap { kEntryK, kEntryV, kEntryQ, kEntryDout, kEntryMaps };
/// Maps of a buffer of keys, in tiles of units.
enum BufferMap { kBufferK, kBufferV, kBufferMaps };

struct Problem : device::Problem {
  int unit_count = 0;
  int* next_unit = nullptr;  ///< counter of units that blocks took; launch() sets it to 0
  const TensorMap* entry_maps = nullptr;     ///< [entries, kEntryMaps]
  const TensorMap* rotation_maps = nullptr;  ///< rotated queries by rotation, tiles of units
  const TensorMap* dout_maps = nullptr;      ///< for every buffer of queries, in tiles of units
  const TensorMap* key_maps = nullptr;       ///< [buffers of keys, kBufferMaps]
};

}  // namespace cadenza::kernels::sm90
