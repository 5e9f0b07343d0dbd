// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/sparse_pattern.hpp"

#include <algorithm>
#include <numeric>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"

namespace cadenza {
namespace {

// Words of a packed pattern: the number of columns, then the bits of the offsets, then the columns,
// two to a word.
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
    if (offset < pattern.rows()) pattern.active_[at(offset)] = true;
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

double SparseRule::adjoining() const {
  if (block == 0 || form() == PatternForm::blocks || top_p > 0 || window == 0) return 0;
  const auto band = static_cast<double>(window / block + 1);
  const auto apart = static_cast<double>(2 * std::max<std::int64_t>(0, slashes - window));
  return band / (band + apart);
}

SparsePattern SparseRule::diagonal(std::int64_t length) const {
  return form() == PatternForm::blocks ? SparsePattern::blocks(length, block, {})
                                       : SparsePattern::vertical_slash(length, block, {}, {});
}

std::int64_t SparseRule::pattern_words(std::int64_t length, Range tokens) const {
  if (form() == PatternForm::blocks) return SparsePattern::packed_block_words(block_rows(tokens));
  return SparsePattern::packed_words((length + block - 1) / block, std::min(columns, length));
}

void SparseRule::pack(const SparsePattern& pattern, Range tokens,
                      std::span<std::uint64_t> words) const {
  if (form() == PatternForm::blocks) return pattern.pack_blocks(block_rows(tokens), words);
  pattern.pack(words);
}

void SparseRule::unpack(std::span<const std::uint64_t> words, Range tokens,
                        SparsePattern& pattern) const {
  if (form() == PatternForm::blocks) return pattern.unpack_blocks(block_rows(tokens), words);
  pattern = SparsePattern::unpack(pattern.length(), block, words);
}

std::vector<std::int64_t> largest_blocks(std::span<const std::uint32_t> masses, double threshold) {
  const std::int64_t own = std::ssize(masses) - 1;
  std::vector<std::int64_t> kept = {0};
  if (own > 0) kept.push_back(own);
  std::vector<std::int64_t> order;
  for (std::int64_t i = 1; i < own; ++i) order.push_back(i);
  const auto mass = [&](std::int64_t i) { return masses[at(i)]; };
  std::ranges::sort(order, [&](std::int64_t a, std::int64_t b) {
    return mass(a) != mass(b) ? mass(a) > mass(b) : a < b;
  });
  const double enough = threshold * static_cast<double>(std::accumulate(
                                        masses.begin(), masses.end(), std::int64_t{0}));
  std::int64_t sum = 0;
  for (const std::int64_t i : kept) sum += mass(i);
  for (const std::int64_t i : order) {
    if (static_cast<double>(sum) >= enough) break;
    sum += mass(i);
    kept.push_back(i);
  }
  std::ranges::sort(kept);
  return kept;
}

std::vector<std::int64_t> largest_masses(std::span<const std::uint32_t> masses, std::int64_t most,
                                         std::int64_t forced, double top_p) {
  const auto count = static_cast<std::int64_t>(masses.size());
  most = std::min(most, count);
  forced = top_p > 0 ? 0 : std::min(forced, most);
  std::vector<std::int64_t> order(masses.size());
  std::iota(order.begin(), order.end(), 0);
  const auto mass = [&](std::int64_t i) { return masses[at(i)]; };
  const auto heavier = [&](std::int64_t a, std::int64_t b) {
    return mass(a) != mass(b) ? mass(a) > mass(b) : a < b;
  };
  const auto first = order.begin() + forced;
  const auto last = order.begin() + most;
  if (most < count) std::nth_element(first, last, order.end(), heavier);
  order.resize(static_cast<std::size_t>(most));
  if (top_p > 0) {
    std::ranges::sort(order, heavier);
    const double enough =
        top_p * static_cast<double>(std::accumulate(masses.begin(), masses.end(), std::int64_t{0}));
    std::int64_t sum = 0;
    const auto reaches = std::ranges::find_if(
        order, [&](std::int64_t i) { return static_cast<double>(sum += mass(i)) >= enough; });
    order.erase(reaches, order.end());
  }
  std::ranges::sort(order);
  return order;
}

SparsePattern choose_pattern(const SparseRule& rule, const ObservedMass& mass) {
  const auto length = static_cast<std::int64_t>(mass.columns.size());
  return SparsePattern::vertical_slash(
      length, rule.block, largest_masses(mass.slashes, rule.slashes, rule.window, rule.top_p),
      largest_masses(mass.columns, rule.columns, rule.sinks, rule.top_p));
}

std::int64_t block_scratch_bytes(int head_dim, std::int64_t stride, std::int64_t length,
                                 std::int64_t element_bytes) {
  const std::int64_t accumulator =
      std::max<std::int64_t>(element_bytes, static_cast<std::int64_t>(sizeof(float)));
  const std::int64_t widened = element_bytes < accumulator ? kScoredKeys * stride * head_dim : 0;
  const std::int64_t groups = (length + stride - 1) / stride;
  return (SparseRule::kObserved * (stride * head_dim + groups) + widened) * accumulator;
}

}  // namespace cadenza
