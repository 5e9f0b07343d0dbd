// SPDX-License-Identifier: Apache-2.0
// Blends of corpora, by weights.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cadenza/data/corpus.hpp"

namespace cadenza::data {

/// Documents of several corpora, interleaved such that after any number of tokens the share of each
/// corpus differs from its weight by at most one document, the longest of all. Each corpus keeps
/// its order and begins anew when it ends. The blend ends when all have been read once and the one
/// that lasts longest has its share.
class BlendCorpus : public Corpus {
 public:
  /// @param names    of the corpora, for messages
  /// @param weights  positive, one for each corpus; their sum is taken as 1
  /// @param most     documents of the blend
  /// @throws Error(data) where small corpora would be repeated to more documents or tokens
  BlendCorpus(std::vector<std::unique_ptr<Corpus>> corpora, const std::vector<std::string>& names,
              const std::vector<double>& weights, std::int64_t most);
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  void read(std::int64_t document, Range tokens, std::span<Token> out) const override;

 private:
  struct Place {
    std::int32_t corpus;
    std::int32_t document;
  };
  void interleave(const std::vector<double>& shares, double least);

  std::vector<std::unique_ptr<Corpus>> corpora_;
  std::vector<Place> places_;
  std::vector<std::int64_t> lengths_;
};

}  // namespace cadenza::data
