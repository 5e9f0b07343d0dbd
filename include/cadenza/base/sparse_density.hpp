// SPDX-License-Identifier: Apache-2.0
// Estimates, from earlier steps, how many pairs of a document sparse attention will compute. Plans
// weigh tasks by it; no result depends on it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "cadenza/base/at.hpp"
#include "cadenza/base/mask.hpp"
#include "cadenza/base/sparse_pattern.hpp"

namespace cadenza {

/// Expected shares of a document's causal pairs that are computed, by kBins equal ranges of rows.
class SparseDensity {
 public:
  static constexpr std::int64_t kBins = 32;
  /// The share 1 as an integer: all ranks compute the same. One unit is less than a key of any row.
  static constexpr std::int64_t kUnit = std::int64_t{1} << 32;

  SparseDensity() { shares_.fill(kUnit); }
  /// The density that a rule's budgets allow, for use before anything was measured; all pairs where
  /// the rule has no budgets.
  static SparseDensity of_budgets(const SparseRule& rule, std::int64_t length);
  /// @param share  [kBins], each in [0, 1]
  explicit SparseDensity(const std::array<double, kBins>& share);

  static Range rows(std::int64_t bin, std::int64_t length) {
    return {bin * length / kBins, (bin + 1) * length / kBins};
  }
  std::int64_t share(std::int64_t bin) const { return shares_[at(bin)]; }
  friend bool operator==(const SparseDensity&, const SparseDensity&) = default;

 private:
  std::array<std::int64_t, kBins> shares_;  ///< in units of 1 / kUnit; at least 1
};

/// A weight of pairs: up to 2^62 pairs of a document, each worth up to SparseDensity::kUnit.
__extension__ using Weight = __int128;

/// A mask whose pairs are weighed by the share that is expected to be computed.
class Weights : public Mask {
 public:
  Weights() = default;
  /// Weighs every pair with `unit`.
  explicit Weights(const Mask& mask, std::int64_t unit = 1)
      : Mask(mask), unit_(unit), plain_(unit == 1 && mask == Mask{}) {}
  /// Weighs the pairs of a document of `length` tokens by its density, which outlives them.
  Weights(const Mask& mask, const SparseDensity* density, std::int64_t length)
      : Mask(mask),
        unit_(SparseDensity::kUnit),
        length_(length),
        density_(density),
        plain_(false) {}

  Weight pairs(Range q, Range k) const;
  /// Weight of the queries' pairs with all keys that they see.
  Weight pairs(Range q) const {
    if (!plain_) return pairs(q, keys(q));
    return q.empty() ? 0 : Weight{q.begin + 1 + q.end} * q.size() / 2;
  }
  /// The weight of a pair that is certainly computed.
  std::int64_t unit() const { return unit_; }
  /// Whether queries see all keys up to their own, and every pair weighs 1.
  bool is_plain() const { return plain_; }

 private:
  std::int64_t unit_ = 1;
  std::int64_t length_ = 0;  ///< 0: all pairs weigh the same
  const SparseDensity* density_ = nullptr;
  bool plain_ = true;
};

/// Key of an estimate: a layer of the model and the number of binary digits of a document's length.
struct SparsePlace {
  static constexpr int kDigits = 41;  ///< at most

  int layer = 0;
  int digits = 0;
  static SparsePlace of(int layer, std::int64_t length);
  friend auto operator<=>(const SparsePlace&, const SparsePlace&) = default;
  friend bool operator==(const SparsePlace&, const SparsePlace&) = default;  // nvcc derives none
};

/// Pairs that attention kept in a step and causal pairs, summed over heads and documents.
struct SparseCounts {
  struct Rows {
    std::array<std::int64_t, SparseDensity::kBins> kept{};
    std::array<std::int64_t, SparseDensity::kBins> causal{};
  };
  std::map<SparsePlace, Rows> rows;
  std::int64_t kept = 0;  ///< pairs of all rows
  std::int64_t causal = 0;

  /// Adds the pairs of one head.
  /// @param tokens  rows of the document that are counted
  void add(int layer, const SparsePattern& pattern, Range tokens);
  /// Share of the causal pairs that was left out; 0 if there are none.
  double sparsity() const;
};

/// Densities that were measured in the steps so far.
class SparseEstimate {
 public:
  using Shares = std::array<double, SparseDensity::kBins>;

  SparseEstimate() = default;
  explicit SparseEstimate(std::map<SparsePlace, Shares> shares) : shares_(std::move(shares)) {}

  /// Adds a step with exponential smoothing: it counts as much as all earlier ones together.
  void add(const SparseCounts& step);
  bool empty() const { return shares_.empty(); }
  /// Mean density of the layers. Each layer gives that of documents of this length, else of the
  /// next longer that it has seen, else of the next shorter. Where no layer has seen a document,
  /// the density of the budgets.
  /// @param layers  layers of the model; empty: all that have been seen
  SparseDensity density(const SparseRule& rule, std::int64_t length,
                        std::span<const int> layers) const;
  const std::map<SparsePlace, Shares>& shares() const { return shares_; }
  friend bool operator==(const SparseEstimate&, const SparseEstimate&) = default;

 private:
  const Shares* find(const SparsePlace& place) const;
  std::map<SparsePlace, Shares> shares_;
};

/// Estimates for the next two steps. A step is planned while the previous one runs, so its estimate
/// lacks the counts of that one.
struct SparseEstimates {
  SparseEstimate next;   ///< for the next step
  SparseEstimate after;  ///< for the step after it
  /// Moves on by one step, which had these counts.
  void add(const SparseCounts& step);
};

}  // namespace cadenza
