// SPDX-License-Identifier: Apache-2.0
// How many of the pairs of a document sparse attention is expected to compute: what plans weigh
// tasks by. An estimate from earlier steps; no result depends on it.
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

/// Shares of the causal pairs of a document's rows, in equal ranges of rows.
class SparseDensity {
 public:
  static constexpr std::int64_t kBins = 32;
  /// Steps of 1: integers, so that all ranks agree. One is less than a key of any row.
  static constexpr std::int64_t kUnit = std::int64_t{1} << 32;

  SparseDensity() { shares_.fill(kUnit); }
  /// What a rule's budgets allow, before anything has been measured: all where it has none.
  static SparseDensity of_budgets(const SparseRule& rule, std::int64_t length);
  /// @param share  [kBins], each in [0, 1]
  explicit SparseDensity(const std::array<double, kBins>& share);

  static Range rows(std::int64_t bin, std::int64_t length) {
    return {bin * length / kBins, (bin + 1) * length / kBins};
  }
  std::int64_t share(std::int64_t bin) const { return shares_[at(bin)]; }
  friend bool operator==(const SparseDensity&, const SparseDensity&) = default;

 private:
  std::array<std::int64_t, kBins> shares_;  ///< of kUnit, 1 or more
};

/// Pairs as plans weigh them: up to 2^62 of a document, each up to SparseDensity::kUnit.
__extension__ using Weight = __int128;

/// A mask whose pairs count as much as is expected to be computed of them.
class Weights : public Mask {
 public:
  Weights() = default;
  /// Every pair counts `unit`.
  explicit Weights(const Mask& mask, std::int64_t unit = 1) : Mask(mask), unit_(unit) {}
  /// The pairs of a document of so many tokens.
  Weights(const Mask& mask, const SparseDensity& density, std::int64_t length)
      : Mask(mask), unit_(SparseDensity::kUnit), length_(length), density_(density) {}

  Weight pairs(Range q, Range k) const;
  /// With all keys that the queries see.
  Weight pairs(Range q) const { return pairs(q, keys(q)); }
  /// The weight of a pair that is computed for certain.
  std::int64_t unit() const { return unit_; }
  /// Whether each causal pair counts 1.
  bool is_plain() const { return is_causal() && unit_ == 1; }

 private:
  std::int64_t unit_ = 1;
  std::int64_t length_ = 0;  ///< 0: all pairs count the same
  SparseDensity density_;
};

/// A layer of the model, and the documents whose lengths have the same number of binary digits.
struct SparsePlace {
  static constexpr int kDigits = 41;  ///< at most

  int layer = 0;
  int digits = 0;
  static SparsePlace of(int layer, std::int64_t length);
  friend auto operator<=>(const SparsePlace&, const SparsePlace&) = default;
  friend bool operator==(const SparsePlace&, const SparsePlace&) = default;  // nvcc makes none
};

/// Pairs of a step, added up over heads and documents.
struct SparseCounts {
  struct Rows {
    std::array<std::int64_t, SparseDensity::kBins> kept{};
    std::array<std::int64_t, SparseDensity::kBins> causal{};
  };
  std::map<SparsePlace, Rows> rows;
  std::int64_t kept = 0;  ///< of all of them
  std::int64_t causal = 0;

  /// Of one head.
  /// @param tokens  the rows of it that count
  void add(int layer, const SparsePattern& pattern, Range tokens);
  /// Share of the causal pairs that is left out; 0 without any.
  double sparsity() const;
};

/// What the steps so far have shown.
class SparseEstimate {
 public:
  using Shares = std::array<double, SparseDensity::kBins>;

  SparseEstimate() = default;
  explicit SparseEstimate(std::map<SparsePlace, Shares> shares) : shares_(std::move(shares)) {}

  /// Smooths: a step counts as much as all before it together.
  void add(const SparseCounts& step);
  bool empty() const { return shares_.empty(); }
  /// Mean of layers: of each the next longer documents that it has seen, else the next shorter
  /// ones. Of the budgets where none of the layers has seen any.
  /// @param layers  empty: all that have been seen
  SparseDensity density(const SparseRule& rule, std::int64_t length,
                        std::span<const int> layers) const;
  const std::map<SparsePlace, Shares>& shares() const { return shares_; }
  friend bool operator==(const SparseEstimate&, const SparseEstimate&) = default;

 private:
  const Shares* find(const SparsePlace& place) const;
  std::map<SparsePlace, Shares> shares_;
};

/// For the steps to come. A step is planned while the one before it runs: it knows the counts of
/// those up to the one before that.
struct SparseEstimates {
  SparseEstimate next;   ///< for the step that comes next
  SparseEstimate after;  ///< for the one behind it
  /// The next step is over.
  void add(const SparseCounts& step);
};

}  // namespace cadenza
