// SPDX-License-Identifier: Apache-2.0
#include "cadenza/data/batch.hpp"

namespace cadenza::data {
namespace {

// Sums `value` over the microbatches of `batch`.
template <typename Value>
std::int64_t sum(const Batch& batch, Value value) {
  std::int64_t total = 0;
  for (const Microbatch& microbatch : batch.microbatches) total += value(microbatch);
  return total;
}

std::int64_t count(const Microbatch& microbatch) {
  return static_cast<std::int64_t>(microbatch.documents.size());
}

}  // namespace

std::int64_t Microbatch::tokens() const {
  std::int64_t total = 0;
  for (const BatchDocument& document : documents) total += document.length();
  return total;
}

std::int64_t Batch::tokens() const {
  return sum(*this, [](const Microbatch& microbatch) { return microbatch.tokens(); });
}

std::int64_t Batch::documents() const {
  return sum(*this, count);
}

std::int64_t Batch::targets() const {
  return sum(*this, [](const Microbatch& microbatch) {
    std::int64_t targets = 0;
    for (const BatchDocument& document : microbatch.documents) {
      if (document.scored) targets += document.length() - 1;
    }
    return targets;
  });
}

std::int64_t Batch::first_document(const Microbatch& microbatch) const {
  std::int64_t before = 0;
  for (const Microbatch* earlier = microbatches.data(); earlier != &microbatch; ++earlier) {
    before += count(*earlier);
  }
  return before;
}

std::vector<std::int64_t> Batch::lengths() const {
  std::vector<std::int64_t> lengths;
  for (const Microbatch& microbatch : microbatches) {
    for (const BatchDocument& document : microbatch.documents) {
      lengths.push_back(document.length());
    }
  }
  return lengths;
}

std::vector<Question> questions_within(std::vector<Question> questions, Range tokens) {
  std::erase_if(questions, [&](const Question& question) {
    return question.fact_begin < tokens.begin || question.token + 1 >= tokens.end;
  });
  for (Question& question : questions) {
    question.token -= tokens.begin;
    question.fact -= tokens.begin;
    question.fact_begin -= tokens.begin;
  }
  return questions;
}

std::vector<Token> read_tokens(const Corpus& corpus, const Microbatch& microbatch) {
  std::vector<Token> tokens(static_cast<std::size_t>(microbatch.tokens()));
  std::span<Token> rest(tokens);
  for (const BatchDocument& document : microbatch.documents) {
    const auto length = static_cast<std::size_t>(document.length());
    corpus.read(document.corpus_document, document.tokens, rest.first(length));
    rest = rest.subspan(length);
  }
  return tokens;
}

}  // namespace cadenza::data
