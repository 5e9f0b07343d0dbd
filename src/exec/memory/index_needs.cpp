// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/memory/index_needs.hpp"

#include <algorithm>

#include "cadenza/base/at.hpp"
#include "cadenza/plan/index.hpp"

namespace cadenza::exec {
namespace {

using program::Pass;

std::int64_t vertical_slash_bytes(const plan::Workload& workload, const plan::IndexParts& parts,
                                  std::size_t holder) {
  const AttentionShape& shape = workload.shape;
  std::int64_t keys = 0;
  for (const plan::Home& home : parts.homes) {
    if (home.rank == parts.holders[holder]) keys += home.tokens.size();
  }
  const std::int64_t lane = shape.accumulator_bytes * SparseRule::kObserved;
  const std::int64_t owned = plan::owned_index(workload, parts, holder).heads.size();
  return shape.heads * ((shape.head_dim + keys) * lane + 2 * keys * 4) +
         owned * 2 * workload.lengths[at(parts.document)] * 4;
}

std::int64_t xattention_bytes(const plan::Workload& workload, const plan::IndexParts& parts,
                              std::size_t holder) {
  const AttentionShape& shape = workload.shape;
  const std::int64_t row = std::int64_t{shape.head_dim} * shape.element_bytes;
  std::int64_t bytes = 0;
  for (const plan::Home& home : parts.homes) {
    if (home.rank != parts.holders[holder]) continue;
    bytes += home.tokens.size() * (shape.heads + shape.kv_heads) * row;
  }
  const plan::OwnedIndex owned = plan::owned_index(workload, parts, holder);
  if (owned.empty()) return bytes;
  const Range rows = workload.sparse.block_rows(owned.tokens);
  const std::int64_t stride = workload.sparse.stride;
  const std::int64_t whole = (owned.tokens.end + stride - 1) / stride * stride;
  const auto blocks = (rows.begin + rows.end) * rows.size() / 2 * owned.heads.size();
  return bytes + owned.heads.size() * owned.tokens.size() * row +
         shape.key_heads(owned.heads).size() * whole * row +
         blocks * static_cast<std::int64_t>(sizeof(std::uint32_t)) +
         block_scratch_bytes(shape.head_dim, workload.sparse.stride, owned.tokens.end,
                             shape.element_bytes);
}

/// Bytes that an estimator holds for one document on one holder while it chooses.
std::int64_t estimator_bytes(const plan::Workload& workload, const plan::IndexParts& parts,
                             std::size_t holder) {
  switch (workload.sparse.kind) {
    case SparseKind::vertical_slash:
      return vertical_slash_bytes(workload, parts, holder);
    case SparseKind::xattention:
      break;
  }
  return xattention_bytes(workload, parts, holder);
}

/// Bytes that a measurement of recall holds for one document of which this rank has `keys` keys.
std::int64_t recall_bytes(const plan::Workload& workload, std::int64_t length, std::int64_t keys) {
  const AttentionShape& shape = workload.shape;
  const std::int64_t blocks = (length + workload.sparse.block - 1) / workload.sparse.block;
  const std::int64_t bits = kRecallQueries * ((blocks + 63) / 64) + (length + 63) / 64;
  return kRecallQueries * (keys + std::int64_t{shape.heads} * shape.head_dim) *
             shape.accumulator_bytes +
         shape.heads * (bits + blocks) * 8;
}

}  // namespace

void IndexNeeds::add(const program::TickPlans& plans, Rank rank) {
  const plan::Workload& workload = plans.forward.workload;
  const AttentionShape& shape = workload.shape;
  std::int64_t bytes = 0;
  std::int64_t patterns = 0;
  for (const plan::IndexParts& parts : plan::index_parts(workload)) {
    const Range tokens{0, workload.lengths[at(parts.document)]};
    const std::int64_t pattern = workload.sparse.pattern_words(tokens.end, tokens) *
                                 static_cast<std::int64_t>(sizeof(std::uint64_t));
    bytes += pattern * shape.heads;
    const int holder = parts.holder(rank);
    if (holder < 0) continue;
    std::int64_t keys = 0;
    for (const plan::Home& home : parts.homes) {
      if (home.rank == rank) keys += home.tokens.size();
    }
    bytes += std::max(estimator_bytes(workload, parts, at(holder)),
                      recall_bytes(workload, tokens.end, keys));
    patterns += plan::owned_index(workload, parts, at(holder)).heads.size() * pattern;
    // Each rank has those that earlier steps have chosen.
    if (workload.reuses(tokens.end)) patterns += pattern * shape.heads;
  }
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const program::Traffic& traffic = plans.index_traffic(pass);
    for (int round = 0; round < traffic.stages(); ++round) {
      const program::Part part = traffic.of(rank, round);
      for (std::int64_t i = part.sends.begin; i < part.sends.end; ++i) {
        bytes += traffic.messages(round)[at(i)].bytes;
      }
      for (const std::uint32_t i : part.receives) bytes += traffic.messages(round)[i].bytes;
    }
  }
  working = std::max(working, bytes);
  kept = std::max(kept, patterns);
}

}  // namespace cadenza::exec
