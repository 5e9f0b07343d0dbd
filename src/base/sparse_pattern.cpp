// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/sparse_pattern.hpp"

namespace cadenza {

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
