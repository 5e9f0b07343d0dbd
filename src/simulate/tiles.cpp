// SPDX-License-Identifier: Apache-2.0
#include "cadenza/simulate/tiles.hpp"

#include <algorithm>

namespace cadenza::simulate {
namespace {

/// a / b, rounded up; a may be negative.
std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return a >= 0 ? (a + b - 1) / b : -(-a / b);
}

}  // namespace

Tiles count_tiles(const Task& task, std::int64_t tile) {
  if (task.q.empty() || task.k.empty()) return {};
  const std::int64_t all = divide_up(task.q.size(), tile);
  const std::int64_t most = divide_up(task.k.size(), tile);
  if (task.rule == Rule::full) return {all, all * most};
  // The last query of full tile i sees min(most, max(0, i + first)) tiles; that of the last tile,
  // which may be a part of one, is counted by itself.
  const std::int64_t first = 1 + divide_up(task.q.begin + task.diagonal - task.k.begin, tile);
  const std::int64_t full = all - 1;
  const std::int64_t blind = std::clamp<std::int64_t>(1 - first, 0, full);
  const std::int64_t rising = std::clamp<std::int64_t>(most - first, blind, full) - blind;
  const std::int64_t level = full - blind - rising;
  const std::int64_t lowest = first + blind;
  const std::int64_t seen = visible_keys(task.q.end - 1, task.k, task.rule, task.diagonal);
  Tiles tiles;
  tiles.keys = rising * lowest + rising * (rising - 1) / 2 + level * most + divide_up(seen, tile);
  tiles.queries = rising + level + (seen > 0 ? 1 : 0);
  return tiles;
}

double tile_weight(const Task& task, std::int64_t tile, double overhead) {
  const Tiles tiles = count_tiles(task, tile);
  return static_cast<double>(tiles.keys) + overhead * static_cast<double>(tiles.queries);
}

}  // namespace cadenza::simulate
