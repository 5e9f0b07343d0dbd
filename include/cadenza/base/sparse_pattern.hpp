// SPDX-License-Identifier: Apache-2.0
// The pairs of one document and one head that dynamic sparse attention computes, and the rule that
// chooses them at run time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/base/range.hpp"
#include "cadenza/base/task.hpp"

namespace cadenza {

/// By what a pattern stores its active blocks.
enum class PatternForm : std::uint8_t { vertical_slash, blocks };

/// The causal pairs in active blocks of `block` x `block` tokens and in selected columns of keys,
/// both counted from the beginning of the document. It is defined on pairs, so tasks may be cut
/// anywhere. The block of a query's own token is always active.
///
/// There are two forms, which store the active blocks differently (PatternForm):
/// - vertical-slash: one bit for each offset of a block from the diagonal, the same in every row of
///   blocks. A slash is a diagonal i - j and activates the offsets of the blocks that it crosses;
/// - blocks: one bit for each block at or below the diagonal.
class SparsePattern {
 public:
  SparsePattern() = default;
  /// @param slashes  diagonals i - j >= 0, in any order
  /// @param columns  keys that every later query sees, in any order
  static SparsePattern vertical_slash(std::int64_t length, std::int64_t block,
                                      std::span<const std::int64_t> slashes,
                                      std::span<const std::int64_t> columns);
  /// @param active  one bit per block at or below the diagonal, row by row: row r has r + 1
  static SparsePattern blocks(std::int64_t length, std::int64_t block,
                              const std::vector<bool>& active);

  PatternForm form() const { return slashes_ ? PatternForm::vertical_slash : PatternForm::blocks; }
  std::int64_t length() const { return length_; }
  std::int64_t block() const { return block_; }
  std::int64_t rows() const { return (length_ + block_ - 1) / block_; }  ///< rows of blocks
  std::span<const std::int64_t> columns() const { return columns_; }     ///< ascending
  bool active(std::int64_t row, std::int64_t column) const;
  bool sees(std::int64_t query, std::int64_t key) const;

  /// Calls visit(Range) for the keys of `k` in active blocks of a row of blocks, in as few ranges
  /// as possible, ascending. The last range may contain the row's own block, which is causal.
  template <typename Visit>
  void for_each_active(std::int64_t row, Range k, Visit&& visit) const;
  /// Calls visit(key) for the selected columns of `k` before the row's own block that lie outside
  /// its active blocks, ascending. All queries of the row see them.
  template <typename Visit>
  void for_each_column(std::int64_t row, Range k, Visit&& visit) const;

  /// Pairs of q x k that are computed.
  std::int64_t pairs(Range q, Range k) const;
  std::int64_t pairs() const { return pairs({0, length_}, {0, length_}); }

  /// 64-bit words of a packed vertical-slash pattern of `rows` rows of blocks and at most
  /// `most_columns` columns.
  static std::int64_t packed_words(std::int64_t rows, std::int64_t most_columns);
  /// Packs a vertical-slash pattern and zeroes the rest of `words`.
  /// @throws Error(internal) where `words` are too few or the pattern has the other form
  void pack(std::span<std::uint64_t> words) const;
  /// Unpacks a vertical-slash pattern.
  /// @throws Error(communication) where `words` hold no pattern of such a document
  static SparsePattern unpack(std::int64_t length, std::int64_t block,
                              std::span<const std::uint64_t> words);

  /// 64-bit words of some packed rows of a pattern of blocks.
  static std::int64_t packed_block_words(Range rows);
  void pack_blocks(Range rows, std::span<std::uint64_t> words) const;
  /// Replaces the blocks of these rows.
  /// @throws Error(communication) where a row's own block is not active, or words are missing
  void unpack_blocks(Range rows, std::span<const std::uint64_t> words);

  friend bool operator==(const SparsePattern&, const SparsePattern&) = default;

 private:
  SparsePattern(std::int64_t length, std::int64_t block, bool slashes)
      : length_(length), block_(block), slashes_(slashes) {}
  std::size_t bit(std::int64_t row, std::int64_t column) const;

  std::int64_t length_ = 0;
  std::int64_t block_ = 1;
  bool slashes_ = true;                ///< the form is vertical-slash
  std::vector<bool> active_;           ///< by offset (vertical-slash) or by block
  std::vector<std::int64_t> columns_;  ///< ascending
};

inline std::size_t SparsePattern::bit(std::int64_t row, std::int64_t column) const {
  const std::int64_t number = slashes_ ? row - column : row * (row + 1) / 2 + column;
  return static_cast<std::size_t>(number);
}

inline bool SparsePattern::active(std::int64_t row, std::int64_t column) const {
  return column <= row && active_[bit(row, column)];
}

template <typename Visit>
void SparsePattern::for_each_active(std::int64_t row, Range k, Visit&& visit) const {
  k = intersect(k, {0, std::min((row + 1) * block_, length_)});
  std::int64_t begin = -1;  // of the open range; -1: none is open
  for (std::int64_t at = k.begin; at < k.end; at = (at / block_ + 1) * block_) {
    const bool in = active(row, at / block_);
    if (in && begin < 0) begin = at;
    if (in || begin < 0) continue;
    visit(Range{begin, at});
    begin = -1;
  }
  if (begin >= 0) visit(Range{begin, k.end});
}

template <typename Visit>
void SparsePattern::for_each_column(std::int64_t row, Range k, Visit&& visit) const {
  k = intersect(k, {0, row * block_});
  auto at = std::lower_bound(columns_.begin(), columns_.end(), k.begin);
  for (; at != columns_.end() && *at < k.end; ++at) {
    if (!active(row, *at / block_)) visit(*at);
  }
}

// --- The rule: how much of a document is kept, and how its pattern is chosen ---

/// How the pattern of a document and a head is chosen, in every layer:
/// - vertical_slash (MInference, arXiv 2407.02490; MTraining, arXiv 2510.18830): the
///   last queries of a document say which keys (columns) and which diagonals i - j (slashes) hold
///   most of their attention; all queries of the document then see those;
/// - xattention (XAttention, arXiv 2503.16428): sums over the antidiagonals of squares of `stride`
///   tokens say which blocks hold most of the attention of each row of blocks.
enum class SparseKind : std::uint8_t { vertical_slash, xattention };

struct SparseTraits {
  PatternForm form;
  bool budgets;        ///< SparseRule's numbers bound what is kept, before anything is measured
  std::int64_t block;  ///< default of SparseRule::block
};

constexpr SparseTraits traits_of(SparseKind kind) {
  switch (kind) {
    case SparseKind::vertical_slash:
      return {PatternForm::vertical_slash, true, 64};
    case SparseKind::xattention:
      break;
  }
  return {PatternForm::blocks, false, 128};
}

struct SparseRule {
  static constexpr int kObserved = 64;  ///< vertical_slash: number of observed queries

  std::int64_t block = 0;    ///< side of a block, tokens; 0: attention is dense
  std::int64_t columns = 0;  ///< largest number of columns
  std::int64_t slashes = 0;  ///< largest number of slashes
  double top_p = 0;  ///< the heaviest, while they hold less of the mass; 0: as many as allowed
  std::int64_t sinks = 0;        ///< top_p 0: first columns, always kept
  std::int64_t window = 0;       ///< top_p 0: smallest diagonals, always kept
  std::int64_t dense_below = 0;  ///< documents of fewer tokens are dense
  SparseKind kind = SparseKind::vertical_slash;
  std::int64_t stride = 0;  ///< xattention: divides `block`, at most kObserved times smaller
  double threshold = 0;     ///< xattention: share of the mass that a row's blocks shall hold

  PatternForm form() const { return traits_of(kind).form; }
  bool is_dense(std::int64_t length) const { return block == 0 || length < dense_below; }
  /// The observed queries of a document: its last kObserved.
  static Range observed(std::int64_t length) {
    return {std::max<std::int64_t>(0, length - kObserved), length};
  }
  /// The rows of blocks that contain `tokens`.
  Range block_rows(Range tokens) const {
    return {tokens.begin / block, (tokens.end + block - 1) / block};
  }
  /// The share of the active blocks that adjoin others of their row, as far as the rule tells:
  /// those of the forced window. Others are taken to lie apart, in pairs.
  double adjoining() const;
  /// The pattern of a document before anything was chosen: the blocks on the diagonal.
  SparsePattern diagonal(std::int64_t length) const;

  // Patterns are sent in 64-bit words. In the form `blocks` only the rows of `tokens` are packed;
  // in the form vertical_slash all rows share the same bits.
  std::int64_t pattern_words(std::int64_t length, Range tokens) const;
  void pack(const SparsePattern& pattern, Range tokens, std::span<std::uint64_t> words) const;
  /// @throws Error(communication) where the words hold no such pattern
  void unpack(std::span<const std::uint64_t> words, Range tokens, SparsePattern& pattern) const;
  friend bool operator==(const SparseRule&, const SparseRule&) = default;
};

// --- Scratch of the kernels that observe (kernels/observe.hpp) ---

/// Keys that they score in a step: these and their scores stay in the cache.
inline constexpr std::int64_t kScoredKeys = 64;
/// Bytes of scratch of one thread that measures blocks, for documents of `length` tokens.
std::int64_t block_scratch_bytes(int head_dim, std::int64_t stride, std::int64_t length,
                                 std::int64_t element_bytes);

/// The attention 1 of a query as an integer: sums of integers do not depend on the order in which
/// ranks add them.
inline constexpr std::uint32_t kMassUnit = std::uint32_t{1} << 25;
/// Attention of the observed queries to keys and diagonals, in units of 1 / kMassUnit.
struct ObservedMass {
  std::vector<std::uint32_t> columns;  ///< by key
  std::vector<std::uint32_t> slashes;  ///< by diagonal i - j >= 0
};

/// The indices of the largest masses, ascending; ties go to the lower index.
/// @param most    largest number of indices
/// @param forced  the first indices that are always kept; only with top_p 0
/// @param top_p   0: keep `most`; else keep the largest as long as their sum stays below this share
///                of all mass: the one that reaches it is not kept
std::vector<std::int64_t> largest_masses(std::span<const std::uint32_t> masses, std::int64_t most,
                                         std::int64_t forced, double top_p);

/// The blocks that a row of blocks keeps, ascending: the first, the row's own (the last), and as
/// many of the largest as the share `threshold` of all mass needs; ties go to the lower index.
std::vector<std::int64_t> largest_blocks(std::span<const std::uint32_t> masses, double threshold);

/// Chooses the vertical-slash pattern of a document and a head.
SparsePattern choose_pattern(const SparseRule& rule, const ObservedMass& mass);

}  // namespace cadenza
