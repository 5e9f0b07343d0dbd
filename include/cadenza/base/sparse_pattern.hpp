// SPDX-License-Identifier: Apache-2.0
// Which pairs dynamic sparse attention computes: of one document and one head, decided at run time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/base/task.hpp"

namespace cadenza {

/// Causal pairs in active blocks of `block` x `block` tokens and in selected columns of keys, both
/// counted from the beginning of the document. Defined on pairs, so that any cut of the rectangle
/// of tasks is exact. The block of a query's own token is always active.
///
/// Two kinds, which differ in how many bits say what is active:
/// - vertical-slash (MInference, arXiv 2407.02490; MTraining, arXiv 2510.18830): slashes are
///   diagonals i - j; each makes the blocks active that it crosses, the same offsets for every row
///   of blocks. A bit for each offset;
/// - blocks (XAttention, arXiv 2503.16428): a bit for each block at or below the diagonal.
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

}  // namespace cadenza
