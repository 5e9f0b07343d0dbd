// SPDX-License-Identifier: Apache-2.0
// Documents that tell facts, go on about something else, and ask for the facts at their end.
#pragma once

#include <cstdint>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/data/corpus.hpp"

namespace cadenza::data {

/// A document is filler with facts in it and questions after it, all drawn from the seed:
/// - a fact is three tokens, [kFact, key, value]; the keys of a document differ. It stands where a
///   share of the filler, its depth, lies before it;
/// - a question is [kAsk, key, value] with the key and value of a fact: the target of its key is
///   the answer;
/// - the filler of a document repeats a phrase of its own.
/// All other tokens are words. Keys are words that a document says nowhere else, so that whoever
/// finds where a key stood before has found its value; repeated phrases teach just that. What a
/// model that has learned all of it cannot know are the phrase when it comes first, where facts
/// stand, and what they say.
class RetrievalCorpus : public Corpus {
 public:
  static constexpr Token kFact = 0;
  static constexpr Token kAsk = 1;
  static constexpr std::int64_t kFactTokens = 3;  ///< and of a question

  /// @throws Error(data) where a document is too short for its facts and questions
  RetrievalCorpus(const config::Data& data, std::int64_t vocab, std::uint64_t seed);
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  void read(std::int64_t document, Range tokens, std::span<Token> out) const override;
  std::vector<Question> questions(std::int64_t document) const override;

 private:
  struct Script;
  Script script(std::int64_t document) const;

  config::Retrieval options_;
  std::int64_t words_;
  std::uint64_t seed_;
  std::vector<std::int64_t> lengths_;
};

}  // namespace cadenza::data
