// SPDX-License-Identifier: Apache-2.0
// How much of a document dynamic sparse attention keeps, and how its pattern is chosen.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/base/range.hpp"
#include "cadenza/base/sparse_pattern.hpp"

namespace cadenza {

/// Who chooses the pattern of a document and a head, anew for every layer:
/// - vertical_slash (MInference, arXiv 2407.02490; MTraining, arXiv 2510.18830): the last queries
/// of
///   a document say which keys (columns) and which diagonals i - j (slashes) hold most of their
///   attention; all queries of the document then see those;
/// - xattention (XAttention, arXiv 2503.16428): sums over the antidiagonals of squares of `stride`
///   tokens say which blocks hold most of the attention of each row of blocks.
enum class SparseKind : std::uint8_t { vertical_slash, xattention };

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

  // A pattern travels in 64-bit words. Of `tokens`: rows of blocks, all of them with
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
