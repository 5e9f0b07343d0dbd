// SPDX-License-Identifier: Apache-2.0
// A corpus in two parts: documents for training, and documents held out for validation.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cadenza/data/corpus.hpp"

namespace cadenza::data {

/// One part of the documents of a corpus, in their order. Which documents are held out depends on
/// their number in the corpus and the share alone: neither on the seed nor on the run.
class PartCorpus : public Corpus {
 public:
  /// @param share  of the documents that are held out, between 0 and 1
  /// @throws Error(data) where one part would have no document
  PartCorpus(std::unique_ptr<Corpus> whole, double share, Part part);
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  void read(std::int64_t document, Range tokens, std::span<Token> out) const override;
  std::vector<Question> questions(std::int64_t document) const override;

 private:
  std::int64_t in_whole(std::int64_t document) const;

  std::unique_ptr<Corpus> whole_;
  Part part_;
  std::vector<std::int64_t> held_out_;  ///< documents of the whole corpus, ascending
  std::vector<std::int64_t> lengths_;
};

/// Corpora one after another.
class JoinedCorpus : public Corpus {
 public:
  explicit JoinedCorpus(std::vector<std::unique_ptr<Corpus>> corpora);
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  void read(std::int64_t document, Range tokens, std::span<Token> out) const override;

 private:
  std::vector<std::unique_ptr<Corpus>> corpora_;
  std::vector<std::int64_t> first_;  ///< first document of each
  std::vector<std::int64_t> lengths_;
};

}  // namespace cadenza::data
