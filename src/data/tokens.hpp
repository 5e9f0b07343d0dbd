// SPDX-License-Identifier: Apache-2.0
// Tokens made by another program: files of integers in which a token ends each document.
#pragma once

#include <cstdint>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/data/corpus.hpp"
#include "data/token_file.hpp"

namespace cadenza::data {

/// Documents of several files, in order; none crosses files. A document ends behind
/// data.document_end or with its file.
class TokensCorpus : public Corpus {
 public:
  TokensCorpus(const config::Data& data, std::int64_t vocab);
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  void read(std::int64_t document, Range tokens, std::span<Token> out) const override;

 private:
  std::vector<TokenFile> files_;
  std::vector<std::int64_t> first_;   // first document of each file
  std::vector<std::int64_t> begins_;  // where each document begins in its file
  std::vector<std::int64_t> lengths_;
};

}  // namespace cadenza::data
