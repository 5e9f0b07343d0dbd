// SPDX-License-Identifier: Apache-2.0
// The corpora, one class for each data.source: text, tokens, synthetic, retrieval.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/data/corpus.hpp"
#include "data/file.hpp"
#include "data/token_file.hpp"

namespace cadenza::data {

/// Document i: kBeginToken, the bytes of the i-th file that is not empty, kEndToken.
class TextCorpus : public Corpus {
 public:
  /// @param paths entries of data.path
  explicit TextCorpus(const std::vector<std::string>& paths);
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  void read(std::int64_t document, Range tokens, std::span<Token> out) const override;

 private:
  void read_bytes(std::int64_t document, std::int64_t offset, std::span<Token> out) const;

  std::vector<std::string> files_;
  std::vector<std::int64_t> lengths_;
  // The pieces of a long document are read one after another: its file stays open meanwhile.
  mutable std::mutex mutex_;
  mutable File open_;
  mutable std::int64_t open_document_ = -1;
};

// Tokens made by another program: files of integers in which a token ends each document.

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

// Documents made up from the seed: lengths of a named distribution, tokens a model can learn.

/// Tokens follow each other as in an order-1 Markov chain: with probability 0.7 the next token is
/// f(previous), f a map drawn from the seed; otherwise it is uniform in [0, vocab). A model that
/// knows f reaches a loss of about 0.25 + 0.3 (ln vocab + 1.2) nats, one that does not, ln vocab.
/// The chain starts anew every kBlock tokens, so a range costs as much to read anywhere in a
/// document.
class SyntheticCorpus : public Corpus {
 public:
  static constexpr std::int64_t kBlock = 64;

  SyntheticCorpus(const config::Data& data, std::int64_t vocab, std::uint64_t seed);
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  void read(std::int64_t document, Range tokens, std::span<Token> out) const override;

 private:
  Token follow(Token previous) const;

  std::int64_t vocab_;
  std::uint64_t seed_;
  std::vector<std::int64_t> lengths_;
};

// Documents that tell facts, go on about something else, and ask for the facts at their end.

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
