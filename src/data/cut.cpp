// SPDX-License-Identifier: Apache-2.0
#include "data/cut.hpp"

#include <algorithm>
#include <utility>

#include "cadenza/base/error.hpp"
#include "cadenza/config/limits.hpp"
#include "cadenza/data/batch.hpp"

namespace cadenza::data {

CutCorpus::CutCorpus(std::unique_ptr<Corpus> whole, std::int64_t max_document)
    : whole_(std::move(whole)), max_document_(max_document) {
  first_.reserve(whole_->lengths().size());
  for (const std::int64_t length : whole_->lengths()) {
    first_.push_back(static_cast<std::int64_t>(lengths_.size()));
    for (std::int64_t begin = 0; begin < length; begin += max_document_) {
      lengths_.push_back(std::min(max_document_, length - begin));
    }
  }
}

CutCorpus::Piece CutCorpus::piece(std::int64_t document) const {
  const auto after = std::upper_bound(first_.begin(), first_.end(), document);
  return {after - first_.begin() - 1, (document - *std::prev(after)) * max_document_};
}

void CutCorpus::read(std::int64_t document, Range tokens, std::span<Token> out) const {
  const auto [whole, begin] = piece(document);
  whole_->read(whole, {begin + tokens.begin, begin + tokens.end}, out);
}

std::vector<Question> CutCorpus::questions(std::int64_t document) const {
  const auto [whole, begin] = piece(document);
  const std::int64_t length = lengths_[static_cast<std::size_t>(document)];
  return questions_within(whole_->questions(whole), {begin, begin + length});
}

namespace {

/// Before anything of that size is made.
void check_size(std::span<const std::int64_t> lengths, std::int64_t max_document) {
  std::int64_t tokens = 0;
  std::int64_t documents = 0;
  for (const std::int64_t length : lengths) {
    if (length < 1 || length > config::kMostTokens - tokens) {
      fail(ExitCode::data, "data: found a corpus of more than {} tokens; valid: fewer",
           config::kMostTokens);
    }
    tokens += length;
    documents += max_document > 0 ? (length - 1) / max_document + 1 : 1;
    if (documents > config::kMostDocuments) {
      fail(ExitCode::data,
           "data.max_document: found {}, which cuts the corpus into more than {} documents; valid: "
           "a larger value, or a smaller corpus",
           max_document, config::kMostDocuments);
    }
  }
}

}  // namespace

std::unique_ptr<Corpus> cut(std::unique_ptr<Corpus> corpus, std::int64_t max_document) {
  check_size(corpus->lengths(), max_document);
  if (max_document <= 0 || std::ranges::max(corpus->lengths()) <= max_document) return corpus;
  return std::make_unique<CutCorpus>(std::move(corpus), max_document);
}

}  // namespace cadenza::data
