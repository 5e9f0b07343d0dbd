// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/sparse_rule.hpp"

#include <algorithm>
#include <numeric>

namespace cadenza {

SparsePattern SparseRule::diagonal(std::int64_t length) const {
  return kind == SparseKind::xattention ? SparsePattern::blocks(length, block, {})
                                        : SparsePattern::vertical_slash(length, block, {}, {});
}

std::int64_t SparseRule::pattern_words(std::int64_t length, Range tokens) const {
  if (kind == SparseKind::xattention) return SparsePattern::packed_block_words(block_rows(tokens));
  return SparsePattern::packed_words((length + block - 1) / block, std::min(columns, length));
}

void SparseRule::pack(const SparsePattern& pattern, Range tokens,
                      std::span<std::uint64_t> words) const {
  if (kind == SparseKind::xattention) return pattern.pack_blocks(block_rows(tokens), words);
  pattern.pack(words);
}

void SparseRule::unpack(std::span<const std::uint64_t> words, Range tokens,
                        SparsePattern& pattern) const {
  if (kind == SparseKind::xattention) return pattern.unpack_blocks(block_rows(tokens), words);
  pattern = SparsePattern::unpack(pattern.length(), block, words);
}

std::vector<std::int64_t> largest_blocks(std::span<const std::uint32_t> masses, double threshold) {
  const std::int64_t own = std::ssize(masses) - 1;
  std::vector<std::int64_t> kept = {0};
  if (own > 0) kept.push_back(own);
  std::vector<std::int64_t> order;
  for (std::int64_t i = 1; i < own; ++i) order.push_back(i);
  const auto mass = [&](std::int64_t i) { return masses[static_cast<std::size_t>(i)]; };
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
  const auto mass = [&](std::int64_t i) { return masses[static_cast<std::size_t>(i)]; };
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

}  // namespace cadenza
