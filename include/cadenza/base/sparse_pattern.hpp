// SPDX-License-Identifier: Apache-2.0
// Which pairs of one document and one head dynamic sparse attention computes, and the rule by which
// that is chosen at run time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/base/range.hpp"
#include "cadenza/base/task.hpp"

namespace cadenza {

/// Causal pairs in active blocks of `block` x `block` tokens and in selected columns of keys, both
/// counted from the beginning of the document. Defined on pairs, so that any cut of the rectangle
/// of tasks is exact. The block of a query's own token is always active.
///
/// Two forms, which differ in how many bits say what is active (PatternForm):
/// - vertical-slash: slashes are diagonals i - j; each makes the blocks active that it crosses, the
///   same offsets for every row of blocks. A bit for each offset;
/// - blocks: a bit for each block at or below the diagonal.
class SparsePattern {
 public:
  SparsePattern() = default;
  /// @param slashes  diagonals i - j >= 0, in any order
  /// @param columns  keys that every later query sees, in any order
  static SparsePattern vertical_slash(std::int64_t length, std::int64_t block,
                                      std::span<const std::int64_t> slashes,
                                      std::span<const std::int64_t> columns);
  /// @param active  of the blocks at or below the diagonal, row by row: row r has r + 1
  static SparsePattern blocks(std::int64_t length, std::int64_t block,
                              const std::vector<bool>& active);

  std::int64_t length() const { return length_; }
  std::int64_t block() const { return block_; }
  std::int64_t rows() const { return (length_ + block_ - 1) / block_; }  ///< of blocks
  std::span<const std::int64_t> columns() const { return columns_; }     ///< ascending
  bool active(std::int64_t row, std::int64_t column) const;
  bool sees(std::int64_t query, std::int64_t key) const;

  /// Calls visit(Range) for the keys of `k` in active blocks of a row of blocks, as few ranges as
  /// possible, ascending. The last one may hold the row's own block, which is causal.
  template <typename Visit>
  void for_each_active(std::int64_t row, Range k, Visit&& visit) const;
  /// Calls visit(key) for the selected columns of `k` that a row of blocks sees beside its active
  /// blocks: all of its queries see all of them. Ascending.
  template <typename Visit>
  void for_each_column(std::int64_t row, Range k, Visit&& visit) const;

  /// Pairs of q x k.
  std::int64_t pairs(Range q, Range k) const;
  std::int64_t pairs() const { return pairs({0, length_}, {0, length_}); }

  /// 64-bit words in which a vertical-slash pattern travels, of so many rows of blocks and at most
  /// so many columns.
  static std::int64_t packed_words(std::int64_t rows, std::int64_t most_columns);
  /// Fills all of `words`. @throws Error(internal) where they are too few, or it has other bits
  void pack(std::span<std::uint64_t> words) const;
  /// @throws Error(communication) where `words` hold no pattern of such a document
  static SparsePattern unpack(std::int64_t length, std::int64_t block,
                              std::span<const std::uint64_t> words);

  /// Of patterns of blocks: words in which the blocks of some rows travel, and back.
  static std::int64_t packed_block_words(Range rows);
  void pack_blocks(Range rows, std::span<std::uint64_t> words) const;
  /// Assigns the blocks of these rows.
  /// @throws Error(communication) where a row's own block is not active, or words are missing
  void unpack_blocks(Range rows, std::span<const std::uint64_t> words);

  friend bool operator==(const SparsePattern&, const SparsePattern&) = default;

 private:
  SparsePattern(std::int64_t length, std::int64_t block, bool slashes)
      : length_(length), block_(block), slashes_(slashes) {}
  std::size_t bit(std::int64_t row, std::int64_t column) const;

  std::int64_t length_ = 0;
  std::int64_t block_ = 1;
  bool slashes_ = true;                ///< one bit for each offset
  std::vector<bool> active_;           ///< by offset, or by block
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
  std::int64_t begin = -1;  // of the range so far
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

// How much of a document dynamic sparse attention keeps, and how its pattern is chosen.

/// Who chooses the pattern of a document and a head, anew for every layer:
/// - vertical_slash (MInference, arXiv 2407.02490; MTraining, arXiv 2510.18830): the last queries
/// of
///   a document say which keys (columns) and which diagonals i - j (slashes) hold most of their
///   attention; all queries of the document then see those;
/// - xattention (XAttention, arXiv 2503.16428): sums over the antidiagonals of squares of `stride`
///   tokens say which blocks hold most of the attention of each row of blocks.
enum class SparseKind : std::uint8_t { vertical_slash, xattention };

enum class PatternForm : std::uint8_t { vertical_slash, blocks };

struct SparseTraits {
  PatternForm form;
  bool budgets;        ///< SparseRule's numbers bound what is kept, before anything is measured
  std::int64_t block;  ///< the usual SparseRule::block
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
  static constexpr int kObserved = 64;  ///< vertical_slash: last queries that are asked

  std::int64_t block = 0;        ///< tokens of a side of a block; 0: attention is dense
  std::int64_t columns = 0;      ///< at most so many
  std::int64_t slashes = 0;      ///< at most so many
  double top_p = 0;              ///< share of the mass that they are to hold; 0: as many as allowed
  std::int64_t sinks = 0;        ///< top_p 0: first columns that are kept whatever their mass
  std::int64_t window = 0;       ///< top_p 0: smallest diagonals that are kept whatever their mass
  std::int64_t dense_below = 0;  ///< documents of fewer tokens are dense
  SparseKind kind = SparseKind::vertical_slash;
  std::int64_t stride = 0;  ///< xattention: divides `block`, at most kObserved times smaller
  double threshold = 0;     ///< xattention: share of the mass that a row's blocks are to hold

  PatternForm form() const { return traits_of(kind).form; }
  bool is_dense(std::int64_t length) const { return block == 0 || length < dense_below; }
  /// The queries of a document that are asked.
  static Range observed(std::int64_t length) {
    return {std::max<std::int64_t>(0, length - kObserved), length};
  }
  /// The rows of blocks that some tokens of a document lie in.
  Range block_rows(Range tokens) const {
    return {tokens.begin / block, (tokens.end + block - 1) / block};
  }
  /// The pattern of a document before anything has been chosen: the blocks of the diagonal.
  SparsePattern diagonal(std::int64_t length) const;

  // A pattern travels in 64-bit words. Of `tokens`: rows of blocks, all of them in the form
  // vertical_slash, where all rows have the same bits.
  std::int64_t pattern_words(std::int64_t length, Range tokens) const;
  void pack(const SparsePattern& pattern, Range tokens, std::span<std::uint64_t> words) const;
  /// @throws Error(communication) where the words hold no such pattern
  void unpack(std::span<const std::uint64_t> words, Range tokens, SparsePattern& pattern) const;
  friend bool operator==(const SparseRule&, const SparseRule&) = default;
};

/// Attention that the observed queries give to keys and diagonals, in steps of 1 / kMassUnit per
/// query. Sums of integers: they do not depend on the order in which ranks add them.
inline constexpr std::uint32_t kMassUnit = std::uint32_t{1} << 25;
struct ObservedMass {
  std::vector<std::uint32_t> columns;  ///< by key
  std::vector<std::uint32_t> slashes;  ///< by diagonal i - j >= 0
};

/// The numbers of the largest masses, ascending; of equal ones the lower number.
/// @param most    keep at most so many
/// @param forced  of the first so many numbers all are kept; only with top_p 0
/// @param top_p   0: keep `most`; else as many of the largest as hold less than this share of all
///                mass together: the one that reaches it is not kept
std::vector<std::int64_t> largest_masses(std::span<const std::uint32_t> masses, std::int64_t most,
                                         std::int64_t forced, double top_p);

/// The blocks that a row of blocks keeps, ascending: the first one, the row's own (the last), and
/// as many of the largest as are needed to hold the share `threshold` of all mass; of equal ones
/// the lower number.
std::vector<std::int64_t> largest_blocks(std::span<const std::uint32_t> masses, double threshold);

/// vertical_slash: the pattern of a document and a head.
SparsePattern choose_pattern(const SparseRule& rule, const ObservedMass& mass);

}  // namespace cadenza
