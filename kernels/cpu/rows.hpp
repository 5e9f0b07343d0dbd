// SPDX-License-Identifier: Apache-2.0
// Tokens of a document to rows of one head in its buffer.
#pragma once

#include "cadenza/kernels/attention.hpp"
#include "tile_kernels.hpp"

namespace cadenza::kernels::cpu {

class HeadRows {
 public:
  HeadRows(const AttentionShape& shape, const RotaryTable<float>& rotary)
      : dim_(shape.head_dim),
        row_(std::int64_t{shape.heads} * shape.head_dim),
        kv_row_(std::int64_t{shape.kv_heads} * shape.head_dim),
        heads_(shape.heads) {
    if (!rotary.enabled()) return;
    rotation_ = {rotary.cos.data(), rotary.sin.data(), rotary.half};
  }

  /// `tokens` of the buffer [buffer tokens, heads, D].
  template <typename Real>
  Rows of_head(const Real* buffer, Range whole, Range tokens, std::int64_t head) const {
    return {buffer + (tokens.begin - whole.begin) * row_ + head * dim_, row_, count(tokens)};
  }
  template <typename Real>
  Rows of_kv_head(const Real* buffer, Range whole, Range tokens, std::int64_t head) const {
    return {buffer + (tokens.begin - whole.begin) * kv_row_ + head * dim_, kv_row_, count(tokens)};
  }
  SumRows sums_of_head(float* buffer, Range whole, Range tokens, std::int64_t head) const {
    return {buffer + (tokens.begin - whole.begin) * row_ + head * dim_, row_, count(tokens)};
  }
  SumRows sums_of_kv_head(float* buffer, Range whole, Range tokens, std::int64_t head) const {
    return {buffer + (tokens.begin - whole.begin) * kv_row_ + head * dim_, kv_row_, count(tokens)};
  }
  /// One number per token and head, [buffer tokens, heads].
  SumRows per_head(float* buffer, Range whole, Range tokens, std::int64_t head) const {
    return {buffer + (tokens.begin - whole.begin) * heads_ + head, heads_, count(tokens)};
  }
  Rotation rotation(std::int64_t position) const {
    if (rotation_.half == 0) return {};
    const std::int64_t at = position * rotation_.half;
    return {rotation_.cos + at, rotation_.sin + at, rotation_.half};
  }

 private:
  static int count(Range tokens) { return static_cast<int>(tokens.size()); }

  int dim_;
  std::int64_t row_;
  std::int64_t kv_row_;
  std::int64_t heads_;
  Rotation rotation_;
};

/// What the queries of a task see of `keys`, in rows of a tile that begins at token `tile`.
inline Visible visible_keys_of(Range queries, std::int64_t tile, Range keys, Rule rule) {
  Visible visible;
  visible.first = static_cast<int>(queries.begin - tile);
  visible.last = static_cast<int>(queries.end - tile);
  visible.keys = static_cast<int>(keys.size());
  visible.causal = rule == Rule::causal;
  visible.offset = tile + 1 - keys.begin;
  return visible;
}

}  // namespace cadenza::kernels::cpu
