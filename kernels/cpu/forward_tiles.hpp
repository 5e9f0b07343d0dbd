// SPDX-License-Identifier: Apache-2.0
// Shared by forward passes: a unit's tiles of queries, from memory to scratch and back.
#pragma once

#include <algorithm>
#include <cmath>

#include "../tasks/work_units.hpp"
#include "attention.hpp"
#include "rows.hpp"
#include "workspace.hpp"

namespace cadenza::kernels::cpu {

/// Tiles of queries, of one or several heads, that share a load of keys: their state fits the
/// second-level cache.
inline constexpr int kMaxTiles = 4;

struct ForwardScratch {
  ForwardHead tiles[kMaxTiles];
  ForwardKeys keys;
};

inline ForwardScratch plan_forward(Scratch& scratch, const TileKernels& kernels, int dim) {
  const std::int64_t words = dim / kernels.depth;
  ForwardScratch plan;
  for (ForwardHead& head : plan.tiles) {
    head.queries = scratch.take(kQueryTile * words);
    head.out = scratch.take(std::int64_t{kQueryTile} * dim);
    head.peak = scratch.take(kQueryTile);
    head.sum = scratch.take(kQueryTile);
    head.lost = scratch.take(kQueryTile);
  }
  ForwardKeys& keys = plan.keys;
  keys.keys = scratch.take(kKeyRows * words);
  keys.values = scratch.take(std::int64_t{kKeyRows} / kernels.depth * dim);
  keys.scores = scratch.take(std::int64_t{2} * kKeyRows * kernels.panel);
  keys.probabilities = kernels.depth == 1
                           ? keys.scores
                           : scratch.take(std::int64_t{kKeyRows} / kernels.depth * kernels.panel);
  keys.rows = scratch.take(kKeyRows * words);
  return plan;
}

/// The tiles of queries of a unit, head by head.
template <typename Real>
class ForwardTiles {
 public:
  ForwardTiles(const TileKernels& kernels, const AttentionShape& shape,
               const RotaryTable<float>& rotary, const TaskList<Real>& list)
      : kernels_(kernels),
        rows_(shape, rotary),
        dim_(shape.head_dim),
        scale_(static_cast<float>(1.0 / std::sqrt(double(shape.head_dim)))),
        list_(list) {}

  /// Calls action(tile tokens, query head, its state) for the tiles of a unit.
  template <typename Action>
  void for_each(const Unit& unit, const ForwardScratch& plan, const Action& action) const {
    int index = 0;
    for (std::int64_t begin = unit.begin; begin < unit.end; begin += kQueryTile) {
      const Range tokens{begin, std::min(unit.end, begin + kQueryTile)};
      for (int head = unit.head_begin; head < unit.head_end; ++head) {
        action(tokens, head, plan.tiles[index++]);
      }
    }
  }

  void begin(const Unit& unit, const ForwardScratch& plan) const {
    for_each(unit, plan,
             [&](Range, int, const ForwardHead& state) { kernels_.forward_begin(state, dim_); });
  }
  void load(const Unit& unit, const PositionMap& map, const ForwardScratch& plan) const {
    const QueryRows<Real>& queries = queries_of(unit);
    for_each(unit, plan, [&](Range tokens, int head, const ForwardHead& state) {
      kernels_.forward_load_queries(state, plan.keys, dim_,
                                    rows_.of_head(queries, queries.q, tokens, head),
                                    rows_.rotation(queries, tokens.begin, map));
    });
  }
  void end(const Unit& unit, const ForwardScratch& plan) const {
    const QueryRows<Real>& queries = queries_of(unit);
    for_each(unit, plan, [&](Range tokens, int head, const ForwardHead& state) {
      kernels_.forward_end(state, dim_, scale_,
                           rows_.sums_of_head(queries, queries.out, tokens, head),
                           rows_.per_head(queries, queries.lse, tokens, head));
    });
  }

  const TileKernels& kernels() const { return kernels_; }
  const HeadRows& rows() const { return rows_; }
  int dim() const { return dim_; }
  float scale() const { return scale_; }
  const QueryRows<Real>& queries_of(const Unit& unit) const {
    return list_.queries[static_cast<std::size_t>(unit.buffer)];
  }

 private:
  const TileKernels& kernels_;
  HeadRows rows_;
  int dim_;
  float scale_;
  const TaskList<Real>& list_;
};

/// Number of tiles per head in a unit: fewer if threads would run out of units. Changes no result.
template <typename Real>
int tiles_per_unit(const TaskList<Real>& list, int unit_heads, int heads, int threads) {
  constexpr std::int64_t kUnitsPerThread = 4;
  std::int64_t tiles = 0;
  for (const TaskRows& entry : list.tasks) {
    tiles += (entry.task.q.size() + kQueryTile - 1) / kQueryTile * heads / unit_heads;
  }
  const std::int64_t wanted = tiles / (kUnitsPerThread * threads);
  return static_cast<int>(std::clamp<std::int64_t>(wanted, 1, kMaxTiles / unit_heads));
}

}  // namespace cadenza::kernels::cpu
