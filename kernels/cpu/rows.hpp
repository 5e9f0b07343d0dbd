// SPDX-License-Identifier: Apache-2.0
// Maps tokens of a document to rows of one head in its buffer.
#pragma once

#include "../tasks/buffers.hpp"
#include "cadenza/kernels/attention.hpp"
#include "tile_kernels.hpp"

namespace cadenza::kernels::cpu {

class HeadRows {
 public:
  HeadRows(const AttentionShape& shape, const RotaryTable<float>& rotary)
      : dim_(shape.head_dim), heads_(shape.heads), kv_heads_(shape.kv_heads) {
    if (!rotary.enabled()) return;
    rotation_ = {rotary.cos.data(), rotary.sin.data(), rotary.half, 0, 0, 0};
    positions_ = static_cast<std::int64_t>(rotary.cos.extent(0)) / rotary.half;
  }

  /// Returns the rows `tokens` of `data`, an array [rows, heads, D] of `buffer`, for a query or
  /// key-value head.
  template <typename Buffer, typename Real>
  Rows of_head(const Buffer& buffer, const Real* data, Range tokens, std::int64_t head) const {
    const Place place = place_of(buffer, tokens, head);
    return {data + place.first * dim_, place.step * dim_, count(tokens)};
  }
  template <typename Buffer>
  SumRows sums_of_head(const Buffer& buffer, float* data, Range tokens, std::int64_t head) const {
    const Place place = place_of(buffer, tokens, head);
    return {data + place.first * dim_, place.step * dim_, count(tokens)};
  }
  /// Returns one number per token of a head, from an array [rows, heads].
  template <typename Buffer>
  SumRows per_head(const Buffer& buffer, float* data, Range tokens, std::int64_t head) const {
    const Place place = place_of(buffer, tokens, head);
    return {data + place.first, place.step, count(tokens)};
  }
  template <typename Real>
  Rotation rotation(const QueryRows<Real>& buffer, std::int64_t token,
                    const PositionMap& map) const {
    Rotation rotation = rotation_;
    if (rotation.half == 0) return rotation;
    const TableRows rows = table_rows(buffer, token, map, positions_);
    rotation.first = rows.first;
    rotation.step = rows.step;
    rotation.last = rows.last;
    return rotation;
  }

 private:
  /// Place of the first token and distance to the next, in heads.
  struct Place {
    std::int64_t first;
    std::int64_t step;
  };

  static int count(Range tokens) { return static_cast<int>(tokens.size()); }

  template <typename Real>
  std::int64_t all_heads(const QueryRows<Real>&) const {
    return heads_;
  }
  template <typename Real>
  std::int64_t all_heads(const KeyRows<Real>&) const {
    return kv_heads_;
  }
  template <typename Buffer>
  Place place_of(const Buffer& buffer, Range tokens, std::int64_t head) const {
    const Range held = held_heads(buffer.heads, all_heads(buffer));
    return {(tokens.begin - buffer.tokens.begin) * held.size() + head - held.begin, held.size()};
  }

  int dim_;
  std::int64_t heads_;
  std::int64_t kv_heads_;
  Rotation rotation_;           ///< not yet of particular rows
  std::int64_t positions_ = 0;  ///< rows of the table
};

/// Keys of `keys` that a task's queries see, in rows of a tile that begins at token `tile`.
inline Visible visible_keys_of(const Task& task, Range queries, std::int64_t tile, Range keys) {
  Visible visible;
  visible.first = static_cast<int>(queries.begin - tile);
  visible.last = static_cast<int>(queries.end - tile);
  visible.keys = static_cast<int>(keys.size());
  visible.low = tile + task.band.low - keys.begin;
  visible.high = tile + task.band.high + 1 - keys.begin;
  return visible;
}

}  // namespace cadenza::kernels::cpu
