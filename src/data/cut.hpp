// SPDX-License-Identifier: Apache-2.0
// data.max_document: longer documents become several.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cadenza/data/corpus.hpp"

namespace cadenza::data {

/// A corpus seen through scissors: every document is cut into consecutive documents of
/// `max_document` tokens, the last one shorter. No token is lost.
class CutCorpus : public Corpus {
 public:
  CutCorpus(std::unique_ptr<Corpus> whole, std::int64_t max_document);
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  void read(std::int64_t document, Range tokens, std::span<Token> out) const override;
  std::vector<Question> questions(std::int64_t document) const override;

 private:
  struct Piece {
    std::int64_t document;  ///< of the whole corpus
    std::int64_t begin;     ///< in it
  };
  Piece piece(std::int64_t document) const;

  std::unique_ptr<Corpus> whole_;
  std::int64_t max_document_;
  std::vector<std::int64_t> lengths_;
  std::vector<std::int64_t> first_;  // first piece of each whole document
};

/// `corpus` itself where nothing is longer than `max_document` or that is 0, else a CutCorpus.
std::unique_ptr<Corpus> cut(std::unique_ptr<Corpus> corpus, std::int64_t max_document);

}  // namespace cadenza::data
