// SPDX-License-Identifier: Apache-2.0
// How many of the pairs of a document sparse attention is expected to compute: what plans weigh
// tasks by. An estimate from earlier steps; no result depends on it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "cadenza/base/mask.hpp"
#include "cadenza/base/sparse_rule.hpp"

namespace cadenza {

/// Shares of the causal pairs of a document's rows, in equal ranges of rows.
class SparseDensity {
 public:
  static constexpr std::int64_t kBins = 32;
  static constexpr std::int64_t kUnit = 1024;  ///< steps of 1: integers, so that all ranks agree

  SparseDensity() { shares_.fill(kUnit); }
  /// What a rule's budgets allow, before anything has been measured: all with xattention.
  static SparseDensity of_budgets(const SparseRule& rule, std::int64_t length);
  /// @param share  [kBins], each in [0, 1]
  explicit SparseDensity(const std::array<double, kBins>& share);

  static Range rows(std::int64_t bin, std::int64_t length) {
    return {bin * length / kBins, (bin + 1) * length / kBins};
  }
  std::int64_t share(std::int64_t bin) const { return shares_[static_cast<std::size_t>(bin)]; }
  friend bool operator==(const SparseDensity&, const SparseDensity&) = default;

 private:
  std::array<std::int64_t, kBins> shares_;  ///< of kUnit, 1 or more
};

/// A mask whose pairs count as much as is expected to be computed of them.
class Weights : public Mask {
 public:
  Weights() = default;
  /// Every pair counts `unit`.
  explicit Weights(const Mask& mask, std::int64_t unit = 1) : Mask(mask), unit_(unit) {}
  /// The pairs of a document of so many tokens.
  Weights(const Mask& mask, const SparseDensity& density, std::int64_t length)
      : Mask(mask), unit_(SparseDensity::kUnit), length_(length), density_(density) {}

  std::int64_t pairs(Range q, Range k) const;
  /// With all keys that the queries see.
  std::int64_t pairs(Range q) const { return pairs(q, keys(q)); }
  /// Whether each causal pair counts 1.
  bool is_plain() const { return is_causal() && unit_ == 1; }

 private:
  std::int64_t unit_ = 1;
  std::int64_t length_ = 0;  ///< 0: all pairs count the same
  SparseDensity density_;
};

/// Pairs by rows, added up over heads and layers of some steps.
struct SparseCounts {
  /// By the class of lengths, the number of their binary digits: kept and causal pairs of each bin.
  static constexpr int kClasses = 42;
  struct Bin {
    std::int64_t kept = 0;
    std::int64_t causal = 0;
  };
  std::array<std::array<Bin, SparseDensity::kBins>, kClasses> bins{};

  static std::size_t class_of(std::int64_t length);
  /// @param tokens  the rows of it that count
  void add(const SparsePattern& pattern, Range tokens);
  /// Share of the causal pairs that is left out; 0 without any.
  double sparsity() const;
};

/// What the steps so far have shown.
class SparseEstimate {
 public:
  /// Smooths: a step counts as much as all before it together.
  void add(const SparseCounts& step);
  bool empty() const { return classes_.empty(); }
  /// Of the next longer class that has been seen, else the next shorter one, else of the budgets.
  SparseDensity density(const SparseRule& rule, std::int64_t length) const;

 private:
  std::map<std::size_t, std::array<double, SparseDensity::kBins>> classes_;
};

}  // namespace cadenza
