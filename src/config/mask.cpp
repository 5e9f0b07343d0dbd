// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>

#include "cadenza/base/mask.hpp"

#include "cadenza/config/experiment.hpp"

namespace cadenza::config {
namespace {

/// Positions of arXiv 2402.17463, section 3: with stride s and w local tokens the largest is
/// s + w - 1; Megatron-LM takes s + w and, for older chunks, at most the last of the next chunk.
DualChunk dual_chunk_of(const Attention& attention) {
  const std::int64_t stride = attention.chunk - attention.local;
  if (attention.cap == ChunkCap::paper) return {stride, attention.chunk - 1, attention.chunk - 1};
  return {stride, attention.chunk, std::min(2 * stride - 1, attention.chunk)};
}

}  // namespace

Mask Attention::mask() const {
  switch (kind) {
    case AttentionKind::full:
    case AttentionKind::vertical_slash:
    case AttentionKind::xattention:
      return {};
    case AttentionKind::window:
      return Mask::window(window, sinks);
    case AttentionKind::prefix:
      return Mask::prefix(prefix);
    case AttentionKind::dual_chunk:
      break;
  }
  return Mask::dual_chunk(dual_chunk_of(*this));
}

SparseRule Attention::sparse_rule() const {
  SparseRule rule;
  if (kind == AttentionKind::vertical_slash) {
    rule.block = sparse.block.value_or(64);
    rule.columns = sparse.columns;
    rule.slashes = sparse.slashes;
    rule.top_p = sparse.top_p;
    rule.sinks = sparse.sinks;
    rule.window = sparse.window;
    rule.dense_below = sparse.dense_below;
    for (const std::vector<HeadBudget>& layer : sparse.heads) {
      for (const HeadBudget& head : layer) {
        rule.columns = std::max(rule.columns, head.columns);
        rule.slashes = std::max(rule.slashes, head.slashes);
      }
    }
  } else if (kind == AttentionKind::xattention) {
    rule.kind = SparseKind::xattention;
    rule.block = sparse.block.value_or(128);
    rule.stride = sparse.stride;
    rule.threshold = sparse.threshold;
    rule.dense_below = sparse.dense_below;
  }
  return rule;
}

SparseRule Attention::sparse_rule(std::int64_t layer, std::int64_t head) const {
  SparseRule rule = sparse_rule();
  if (kind != AttentionKind::vertical_slash) return rule;
  const bool named = layer < std::ssize(sparse.heads) &&
                     head < std::ssize(sparse.heads[static_cast<std::size_t>(layer)]);
  const HeadBudget budget =
      named ? sparse.heads[static_cast<std::size_t>(layer)][static_cast<std::size_t>(head)]
            : HeadBudget{sparse.columns, sparse.slashes, sparse.top_p};
  rule.columns = budget.columns;
  rule.slashes = budget.slashes;
  rule.top_p = budget.top_p;
  return rule;
}

}  // namespace cadenza::config
