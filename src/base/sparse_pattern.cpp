// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/sparse_pattern.hpp"

#include "cadenza/base/error.hpp"

namespace cadenza {
namespace {

// A packed pattern: the number of columns; the bits of offsets; two columns in a word.
constexpr std::int64_t kBits = 64;

std::int64_t bit_words(std::int64_t bits) {
  return (bits + kBits - 1) / kBits;
}

}  // namespace

SparsePattern SparsePattern::vertical_slash(std::int64_t length, std::int64_t block,
                                            std::span<const std::int64_t> slashes,
                                            std::span<const std::int64_t> columns) {
  SparsePattern pattern(length, block, true);
  pattern.active_.assign(static_cast<std::size_t>(pattern.rows()), false);
  const auto mark = [&](std::int64_t offset) {
    if (offset < pattern.rows()) pattern.active_[static_cast<std::size_t>(offset)] = true;
  };
  mark(0);
  for (const std::int64_t slash : slashes) {
    mark(slash / block);
    mark((slash + block - 1) / block);
  }
  pattern.columns_.assign(columns.begin(), columns.end());
  std::ranges::sort(pattern.columns_);
  const auto twice = std::ranges::unique(pattern.columns_);
  pattern.columns_.erase(twice.begin(), twice.end());
  return pattern;
}

SparsePattern SparsePattern::blocks(std::int64_t length, std::int64_t block,
                                    const std::vector<bool>& active) {
  SparsePattern pattern(length, block, false);
  pattern.active_ = active;
  pattern.active_.resize(pattern.bit(pattern.rows(), 0), false);
  for (std::int64_t row = 0; row < pattern.rows(); ++row) {
    pattern.active_[pattern.bit(row, row)] = true;
  }
  return pattern;
}

std::int64_t SparsePattern::packed_words(std::int64_t rows, std::int64_t most_columns) {
  return 1 + bit_words(rows) + (most_columns + 1) / 2;
}

void SparsePattern::pack(std::span<std::uint64_t> words) const {
  if (!slashes_ || std::ssize(words) < packed_words(rows(), std::ssize(columns_))) {
    fail(ExitCode::internal, "a pattern of {} columns does not fit into {} words", columns_.size(),
         words.size());
  }
  std::ranges::fill(words, 0);
  words[0] = columns_.size();
  for (std::size_t bit = 0; bit < active_.size(); ++bit) {
    if (active_[bit]) words[1 + bit / kBits] |= std::uint64_t{1} << (bit % kBits);
  }
  const auto columns = words.subspan(static_cast<std::size_t>(1 + bit_words(rows())));
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    columns[i / 2] |= static_cast<std::uint64_t>(columns_[i]) << (i % 2 * 32);
  }
}

SparsePattern SparsePattern::unpack(std::int64_t length, std::int64_t block,
                                    std::span<const std::uint64_t> words) {
  SparsePattern pattern(length, block, true);
  pattern.active_.assign(static_cast<std::size_t>(pattern.rows()), false);
  const auto skipped = static_cast<std::size_t>(1 + bit_words(pattern.rows()));
  const std::size_t count = words.empty() ? 0 : words[0];
  if (words.size() < skipped || count > 2 * (words.size() - skipped) || (words[1] & 1) == 0) {
    fail(ExitCode::communication, "{} words hold no sparse pattern of {} tokens", words.size(),
         length);
  }
  for (std::size_t bit = 0; bit < pattern.active_.size(); ++bit) {
    pattern.active_[bit] = (words[1 + bit / kBits] >> (bit % kBits) & 1) != 0;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t word = words[skipped + i / 2] >> (i % 2 * 32);
    const auto column = static_cast<std::int64_t>(word & 0xffffffffU);
    const bool ascends = pattern.columns_.empty() || column > pattern.columns_.back();
    if (column >= length || !ascends) {
      fail(ExitCode::communication, "column {} is out of its place in a pattern of {} tokens",
           column, length);
    }
    pattern.columns_.push_back(column);
  }
  return pattern;
}

std::int64_t SparsePattern::packed_block_words(Range rows) {
  return bit_words(rows.end * (rows.end + 1) / 2 - rows.begin * (rows.begin + 1) / 2);
}

void SparsePattern::pack_blocks(Range rows, std::span<std::uint64_t> words) const {
  if (slashes_ || std::ssize(words) != packed_block_words(rows)) {
    fail(ExitCode::internal, "rows [{}, {}) of blocks do not fit into {} words", rows.begin,
         rows.end, words.size());
  }
  std::ranges::fill(words, 0);
  const std::size_t first = bit(rows.begin, 0);
  for (std::size_t i = 0; i < bit(rows.end, 0) - first; ++i) {
    if (active_[first + i]) words[i / kBits] |= std::uint64_t{1} << (i % kBits);
  }
}

void SparsePattern::unpack_blocks(Range rows, std::span<const std::uint64_t> words) {
  if (slashes_ || std::ssize(words) != packed_block_words(rows)) {
    fail(ExitCode::communication, "{} words hold no rows [{}, {}) of a pattern of blocks",
         words.size(), rows.begin, rows.end);
  }
  const std::size_t first = bit(rows.begin, 0);
  for (std::size_t i = 0; i < bit(rows.end, 0) - first; ++i) {
    active_[first + i] = (words[i / kBits] >> (i % kBits) & 1) != 0;
  }
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    if (active(row, row)) continue;
    fail(ExitCode::communication, "block {} of a pattern of {} tokens does not see itself", row,
         length_);
  }
}

bool SparsePattern::sees(std::int64_t query, std::int64_t key) const {
  if (key > query) return false;
  return active(query / block_, key / block_) || std::ranges::binary_search(columns_, key);
}

std::int64_t SparsePattern::pairs(Range q, Range k) const {
  q = intersect(q, {0, length_});
  std::int64_t sum = 0;
  for (std::int64_t row = q.begin / block_; row * block_ < q.end; ++row) {
    const Range queries = intersect(q, {row * block_, (row + 1) * block_});
    for_each_active(row, k,
                    [&](Range keys) { sum += allowed_pairs(queries, keys, Band::causal()); });
    for_each_column(row, k, [&](std::int64_t) { sum += queries.size(); });
  }
  return sum;
}

}  // namespace cadenza
