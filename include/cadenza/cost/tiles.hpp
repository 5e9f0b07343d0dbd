// SPDX-License-Identifier: Apache-2.0
// What an attention kernel goes through: tiles.
#pragma once

#include <cstdint>

#include "cadenza/base/task.hpp"

namespace cadenza::cost {

/// For one head of a task.
struct Tiles {
  std::int64_t queries = 0;  ///< tiles of queries that see a key
  std::int64_t keys = 0;     ///< tiles of keys seen, over all of them; a part of one is one
};

/// Tiles of `tile` queries and keys, counted from the task's first query and key. Constant time.
Tiles count_tiles(const Task& task, std::int64_t tile);

/// Seconds are proportional to this where a tile of queries costs `overhead` tiles of keys before
/// it sees any.
double tile_weight(const Task& task, std::int64_t tile, double overhead);

}  // namespace cadenza::cost
