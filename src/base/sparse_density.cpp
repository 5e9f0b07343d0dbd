// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/sparse_density.hpp"

#include <bit>
#include <cmath>
#include <vector>

#include "cadenza/base/at.hpp"

namespace cadenza {

SparseDensity::SparseDensity(const std::array<double, kBins>& share) {
  for (std::size_t bin = 0; bin < shares_.size(); ++bin) {
    const auto steps = static_cast<std::int64_t>(std::llround(share[bin] * double{kUnit}));
    shares_[bin] = std::clamp<std::int64_t>(steps, 1, kUnit);
  }
}

SparseDensity SparseDensity::of_budgets(const SparseRule& rule, std::int64_t length) {
  if (!traits_of(rule.kind).budgets) return {};  // a threshold does not bound how many are kept
  // Slashes of the window are neighbours; each of the others activates up to two blocks of a row.
  // The block on the diagonal is always active, and half of it is causal.
  const std::int64_t window = rule.top_p > 0 ? 0 : std::min(rule.window, rule.slashes);
  const std::int64_t farthest = std::max<std::int64_t>(0, window - 1);
  const double blocks = static_cast<double>((farthest + rule.block - 1) / rule.block) +
                        2.0 * static_cast<double>(rule.slashes - window);
  const double keys = blocks * static_cast<double>(rule.block) +
                      static_cast<double>((rule.block + 1) / 2 + rule.columns);
  const double most = std::min(keys, static_cast<double>(length));
  const auto pairs = [](Range rows, double keys) {  // rows see at most `keys` keys each
    const auto before = [&](std::int64_t row) {
      const double causal = std::min(static_cast<double>(row), keys);
      return causal * (causal + 1) / 2 + static_cast<double>(row) * causal - causal * causal;
    };
    return before(rows.end) - before(rows.begin);
  };
  std::array<double, kBins> share{};
  for (std::int64_t bin = 0; bin < kBins; ++bin) {
    const Range rows = SparseDensity::rows(bin, length);
    share[at(bin)] =
        rows.empty() ? 1.0 : pairs(rows, most) / pairs(rows, static_cast<double>(length));
  }
  return SparseDensity(share);
}

Weight Weights::pairs(Range q, Range k) const {
  if (plain_) return allowed_pairs(q, k, Band::causal());
  if (length_ == 0) return Weight{unit_} * Mask::pairs(q, k);
  Weight sum = 0;
  for (std::int64_t bin = 0; bin < SparseDensity::kBins; ++bin) {
    const Range rows = intersect(q, SparseDensity::rows(bin, length_));
    if (!rows.empty()) sum += Weight{density_->share(bin)} * Mask::pairs(rows, k);
  }
  return sum;
}

SparsePlace SparsePlace::of(int layer, std::int64_t length) {
  return {layer, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(length)))};
}

void SparseCounts::add(int layer, const SparsePattern& pattern, Range tokens) {
  Rows& sums = rows[SparsePlace::of(layer, pattern.length())];
  const Range keys{0, pattern.length()};
  for (std::size_t bin = 0; bin < sums.kept.size(); ++bin) {
    const Range queries =
        intersect(tokens, SparseDensity::rows(static_cast<std::int64_t>(bin), pattern.length()));
    if (queries.empty()) continue;
    const std::int64_t computed = pattern.pairs(queries, keys);
    const std::int64_t all = allowed_pairs(queries, keys, Band::causal());
    sums.kept[bin] += computed;
    sums.causal[bin] += all;
    kept += computed;
    causal += all;
  }
}

double SparseCounts::sparsity() const {
  return causal == 0 ? 0 : 1 - static_cast<double>(kept) / static_cast<double>(causal);
}

void SparseEstimate::add(const SparseCounts& step) {
  for (const auto& [place, rows] : step.rows) {
    if (rows.causal.back() == 0) continue;  // no such document
    const auto [at, first] = shares_.try_emplace(place);
    for (std::size_t bin = 0; bin < at->second.size(); ++bin) {
      if (rows.causal[bin] == 0) continue;
      const double share =
          static_cast<double>(rows.kept[bin]) / static_cast<double>(rows.causal[bin]);
      at->second[bin] = first ? share : (at->second[bin] + share) / 2;
    }
  }
}

const SparseEstimate::Shares* SparseEstimate::find(const SparsePlace& place) const {
  auto at = shares_.lower_bound(place);
  const auto of_layer = [&] { return at != shares_.end() && at->first.layer == place.layer; };
  if (!of_layer() && at != shares_.begin()) --at;
  return of_layer() ? &at->second : nullptr;
}

SparseDensity SparseEstimate::density(const SparseRule& rule, std::int64_t length,
                                      std::span<const int> layers) const {
  std::vector<int> all;
  if (layers.empty()) {
    for (const auto& [place, shares] : shares_) {
      if (all.empty() || all.back() != place.layer) all.push_back(place.layer);
    }
    layers = all;
  }
  Shares sum{};
  int seen = 0;
  for (const int layer : layers) {
    const Shares* const shares = find(SparsePlace::of(layer, length));
    if (shares == nullptr) continue;
    for (std::size_t bin = 0; bin < sum.size(); ++bin) sum[bin] += (*shares)[bin];
    ++seen;
  }
  if (seen == 0) return SparseDensity::of_budgets(rule, length);
  for (double& share : sum) share /= seen;
  return SparseDensity(sum);
}

void SparseEstimates::add(const SparseCounts& step) {
  next = after;
  after.add(step);
}

}  // namespace cadenza
