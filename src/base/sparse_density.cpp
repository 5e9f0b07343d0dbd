// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/sparse_density.hpp"

#include <bit>
#include <cmath>

namespace cadenza {

SparseDensity::SparseDensity(const std::array<double, kBins>& share) {
  for (std::size_t bin = 0; bin < shares_.size(); ++bin) {
    const auto steps = static_cast<std::int64_t>(std::llround(share[bin] * double{kUnit}));
    shares_[bin] = std::clamp<std::int64_t>(steps, 1, kUnit);
  }
}

SparseDensity SparseDensity::of_budgets(const SparseRule& rule, std::int64_t length) {
  // Slashes of the window lie next to each other; each of the others makes up to two blocks of a
  // row active. The block on the diagonal is always active, half of it is causal.
  const std::int64_t window = rule.top_p > 0 ? 0 : rule.window;
  const std::int64_t farthest = std::max<std::int64_t>(0, window - 1);
  const std::int64_t blocks =
      (farthest + rule.block - 1) / rule.block + 2 * (rule.slashes - window);
  const std::int64_t most = blocks * rule.block + (rule.block + 1) / 2 + rule.columns;
  const auto pairs = [](Range rows, std::int64_t keys) {  // of rows that see at most so many keys
    const auto before = [&](std::int64_t row) {
      const auto causal = static_cast<double>(std::min(row, keys));
      return causal * (causal + 1) / 2 + static_cast<double>(row) * causal - causal * causal;
    };
    return before(rows.end) - before(rows.begin);
  };
  std::array<double, kBins> share{};
  for (std::int64_t bin = 0; bin < kBins; ++bin) {
    const Range rows = SparseDensity::rows(bin, length);
    share[static_cast<std::size_t>(bin)] =
        rows.empty() ? 1.0 : pairs(rows, most) / pairs(rows, length);
  }
  return SparseDensity(share);
}

std::int64_t Weights::pairs(Range q, Range k) const {
  if (length_ == 0) return unit_ * Mask::pairs(q, k);
  std::int64_t sum = 0;
  for (std::int64_t bin = 0; bin < SparseDensity::kBins; ++bin) {
    const Range rows = intersect(q, SparseDensity::rows(bin, length_));
    if (!rows.empty()) sum += density_.share(bin) * Mask::pairs(rows, k);
  }
  return sum;
}

std::size_t SparseCounts::class_of(std::int64_t length) {
  return static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(length)));
}

void SparseCounts::add(const SparsePattern& pattern) {
  auto& mine = bins[class_of(pattern.length())];
  for (std::int64_t bin = 0; bin < SparseDensity::kBins; ++bin) {
    const Range rows = SparseDensity::rows(bin, pattern.length());
    const Range keys{0, pattern.length()};
    Bin& sum = mine[static_cast<std::size_t>(bin)];
    sum.kept += pattern.pairs(rows, keys);
    sum.causal += allowed_pairs(rows, keys, Band::causal());
  }
}

double SparseCounts::sparsity() const {
  double kept = 0;
  double causal = 0;
  for (const auto& each : bins) {
    for (const Bin& bin : each) {
      kept += static_cast<double>(bin.kept);
      causal += static_cast<double>(bin.causal);
    }
  }
  return causal == 0 ? 0 : 1 - kept / causal;
}

void SparseEstimate::add(const SparseCounts& step) {
  for (std::size_t each = 0; each < step.bins.size(); ++each) {
    if (step.bins[each].back().causal == 0) continue;  // no such document
    const auto [at, first] = classes_.try_emplace(each);
    for (std::size_t bin = 0; bin < at->second.size(); ++bin) {
      const SparseCounts::Bin& sum = step.bins[each][bin];
      if (sum.causal == 0) continue;
      const double share = static_cast<double>(sum.kept) / static_cast<double>(sum.causal);
      at->second[bin] = first ? share : (at->second[bin] + share) / 2;
    }
  }
}

SparseDensity SparseEstimate::density(const SparseRule& rule, std::int64_t length) const {
  if (classes_.empty()) return SparseDensity::of_budgets(rule, length);
  auto at = classes_.lower_bound(SparseCounts::class_of(length));
  if (at == classes_.end()) --at;
  return SparseDensity(at->second);
}

}  // namespace cadenza
