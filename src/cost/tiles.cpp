// SPDX-License-Identifier: Apache-2.0
#include "cadenza/cost/tiles.hpp"

#include <algorithm>

namespace cadenza::cost {
namespace {

/// a / b, rounded up; a may be negative.
std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return a >= 0 ? (a + b - 1) / b : -(-a / b);
}
/// The same, rounded down.
std::int64_t divide_down(std::int64_t a, std::int64_t b) {
  return -divide_up(-a, b);
}

/// first, first + 1, ...: `count` numbers, each cut to [0, most].
struct Steps {
  Steps(std::int64_t first, std::int64_t count, std::int64_t most)
      : below(std::clamp<std::int64_t>(1 - first, 0, count)),
        above(count - std::clamp<std::int64_t>(most - first, below, count)) {
    const std::int64_t rising = count - below - above;
    sum = rising * (first + below) + rising * (rising - 1) / 2 + above * most;
  }
  std::int64_t below = 0;  ///< how many are 0
  std::int64_t above = 0;  ///< how many are `most`
  std::int64_t sum = 0;
};

}  // namespace

Tiles count_tiles(const Task& task, std::int64_t tile) {
  // Queries behind those that see the last key see none.
  const Range q{task.q.begin, std::min(task.q.end, task.k.end - task.band.low)};
  if (q.empty() || task.k.empty()) return {};
  // Full tile i of queries sees tiles of keys up to `ends` + i, but for the first `begins` + i. The
  // last tile, which may be a part of one, is counted by itself.
  const std::int64_t full = divide_up(q.size(), tile) - 1;
  const std::int64_t most = divide_up(task.k.size(), tile);
  const std::int64_t start = q.begin - task.k.begin;
  const Steps ends(1 + divide_up(start + task.band.high, tile), full, most);
  const Steps begins(divide_down(start + task.band.low, tile), full, most);
  const Range last = seen_keys({q.begin + full * tile, q.end}, task.k, task.band);
  Tiles tiles;
  tiles.keys = ends.sum - begins.sum;
  tiles.queries = full - ends.below - begins.above;
  if (!last.empty()) {
    tiles.keys += divide_up(last.end - task.k.begin, tile) - (last.begin - task.k.begin) / tile;
    ++tiles.queries;
  }
  return tiles;
}

double tile_weight(const Task& task, std::int64_t tile, double overhead) {
  const Tiles tiles = count_tiles(task, tile);
  return static_cast<double>(tiles.keys) + overhead * static_cast<double>(tiles.queries);
}

}  // namespace cadenza::cost
