// SPDX-License-Identifier: Apache-2.0
// The kinds of attention: one row of properties for each, which other code reads.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>

#include "cadenza/base/at.hpp"
#include "cadenza/base/sparse_pattern.hpp"

namespace cadenza::config {

/// The keys of its document that a query sees: `full`, all so far; `window`, the last ones
/// and the first `sinks`;
/// `prefix`, all so far and all of the prefix; `dual_chunk`, all so far at other positions. The
/// sparse kinds choose, for every layer, head and document, blocks and columns (vertical_slash) or
/// blocks (xattention).
enum class AttentionKind { full, window, prefix, dual_chunk, vertical_slash, xattention };

// Keys that belong to some kinds only; kSparseKeys belong to all sparse kinds.
using Key = std::string_view;
inline constexpr auto kWindowKeys = std::to_array<Key>({"attention.window", "attention.sinks"});
inline constexpr auto kPrefixKeys = std::to_array<Key>({"attention.prefix"});
inline constexpr auto kDualChunkKeys =
    std::to_array<Key>({"attention.chunk", "attention.local", "attention.cap"});
inline constexpr auto kSparseKeys =
    std::to_array<Key>({"attention.sparse.block", "attention.sparse.dense_below",
                        "attention.sparse.dense_steps", "attention.sparse.refresh"});
inline constexpr auto kVerticalSlashKeys = std::to_array<Key>(
    {"attention.sparse.columns", "attention.sparse.slashes", "attention.sparse.top_p",
     "attention.sparse.sinks", "attention.sparse.window", "attention.sparse.budgets"});
inline constexpr auto kXAttentionKeys =
    std::to_array<Key>({"attention.sparse.stride", "attention.sparse.threshold"});

struct AttentionTraits {
  std::string_view word;
  std::span<const Key> keys = {};
  std::optional<SparseKind> sparse = {};  ///< only some pairs of the mask are computed

  constexpr bool takes(Key key) const {
    const auto has = [&](const auto& list) { return std::ranges::find(list, key) != list.end(); };
    return has(keys) || (sparse && has(kSparseKeys));
  }
};

/// Properties by enumerator.
inline constexpr auto kAttentionKinds = std::to_array<AttentionTraits>({
    {"full"},
    {"window", kWindowKeys},
    {"prefix", kPrefixKeys},
    {"dual_chunk", kDualChunkKeys},
    {"vertical_slash", kVerticalSlashKeys, SparseKind::vertical_slash},
    {"xattention", kXAttentionKeys, SparseKind::xattention},
});
static_assert(kAttentionKinds.size() == at(AttentionKind::xattention) + 1);

constexpr const AttentionTraits& traits_of(AttentionKind kind) {
  return kAttentionKinds[at(kind)];
}

}  // namespace cadenza::config
