// SPDX-License-Identifier: Apache-2.0
// Shared by backward passes: scratch of a pair of tiles, tiles of queries from memory to scratch
// and their dQ back, and the slots to which units add dQ.
#pragma once

#include <algorithm>
#include <vector>

#include "rows.hpp"
#include "tile_kernels.hpp"
#include "workspace.hpp"

namespace cadenza::kernels::cpu {

struct BackwardScratch {
  BackwardKeys keys;
  BackwardQueries queries;
  float* rows;
};

inline BackwardKeys plan_keys(Scratch& scratch, const TileKernels& kernels, int dim) {
  const std::int64_t words = dim / kernels.depth;
  const std::int64_t tile = kernels.gradient_keys;
  BackwardKeys keys;
  keys.key_panels = scratch.take(tile * words);
  keys.value_panels = scratch.take(tile * words);
  keys.keys = scratch.take(tile / kernels.depth * dim);
  keys.dk = scratch.take(tile * dim);
  keys.dv = scratch.take(tile * dim);
  return keys;
}

inline BackwardQueries plan_queries(Scratch& scratch, const TileKernels& kernels, int dim) {
  const std::int64_t tile = kernels.gradient_queries;
  const std::int64_t keys = kernels.gradient_keys;
  const bool pairs = kernels.depth > 1;
  const std::int64_t words = dim / kernels.depth;
  BackwardQueries q;
  q.q = scratch.take(tile * words);
  q.dout = scratch.take(tile * words);
  q.q_pairs = pairs ? scratch.take(tile / 2 * dim) : q.q;
  q.dout_pairs = pairs ? scratch.take(tile / 2 * dim) : q.dout;
  q.lse = scratch.take(tile);
  q.minus_delta = scratch.take(tile);
  q.p = scratch.take(tile * keys);
  q.p_pairs = pairs ? scratch.take(tile / 2 * keys) : q.p;
  q.ds = scratch.take(tile * keys / kernels.depth);
  q.ds_pairs = pairs ? scratch.take(tile / 2 * keys) : q.ds;
  q.dq = scratch.take(tile * dim);
  return q;
}

inline BackwardScratch plan_backward(Scratch& scratch, const TileKernels& kernels, int dim) {
  BackwardScratch plan;
  plan.keys = plan_keys(scratch, kernels, dim);
  plan.queries = plan_queries(scratch, kernels, dim);
  plan.rows = scratch.take(std::int64_t{kernels.gradient_keys} * dim / kernels.depth);
  return plan;
}

/// A tile of queries of one head under one map of positions.
template <typename Real>
struct QueryTile {
  const QueryRows<Real>& buffer;
  Range tokens;
  std::int64_t head;
  const PositionMap& map;
};

template <typename Real>
void load_queries(const TileKernels& kernels, const HeadRows& rows, int dim,
                  const QueryTile<Real>& tile, const BackwardQueries& scratch) {
  const QueryRows<Real>& buffer = tile.buffer;
  float* delta = const_cast<float*>(buffer.delta);  // only read
  kernels.backward_load_queries(scratch, dim,
                                rows.of_head(buffer, buffer.q, tile.tokens, tile.head),
                                rows.rotation(buffer, tile.tokens.begin, tile.map),
                                rows.of_head(buffer, buffer.dout, tile.tokens, tile.head),
                                rows.per_head(buffer, buffer.lse, tile.tokens, tile.head),
                                rows.per_head(buffer, delta, tile.tokens, tile.head));
}

/// Adds dQ of some queries of the tile, which a step left in scratch, times `scale`.
template <typename Real>
void add_query_gradient(const TileKernels& kernels, const HeadRows& rows, int dim, float scale,
                        const QueryTile<Real>& tile, Range queries,
                        const BackwardQueries& scratch) {
  const QueryRows<Real>& buffer = tile.buffer;
  const std::int64_t first = queries.begin - tile.tokens.begin;
  kernels.add_rows(scratch.dq + first * dim, dim, scale,
                   rows.rotation(buffer, queries.begin, tile.map),
                   rows.sums_of_head(buffer, buffer.dq, queries, tile.head));
}

/// Slots (buffer, tile of queries, head) that units add to.
class Slots {
 public:
  Slots(const std::vector<Range>& buffers, int tile, int heads) : heads_(heads) {
    for (const Range& tokens : buffers) {
      first_.push_back(tiles_);
      tiles_ += (std::max<std::int64_t>(0, tokens.size()) + tile - 1) / tile;
    }
  }
  std::size_t size() const { return static_cast<std::size_t>(tiles_ * heads_); }
  std::size_t of(int buffer, std::int64_t tile, std::int64_t head) const {
    return static_cast<std::size_t>((first_[static_cast<std::size_t>(buffer)] + tile) * heads_ +
                                    head);
  }

 private:
  std::int64_t heads_;
  std::int64_t tiles_ = 0;
  std::vector<std::int64_t> first_;  ///< first tile of each buffer
};

}  // namespace cadenza::kernels::cpu
