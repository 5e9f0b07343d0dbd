// SPDX-License-Identifier: Apache-2.0
// The corpora, one class per data.source: text, tokens, synthetic, retrieval.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/data/corpus.hpp"
#include "data/file.hpp"
#include "data/kept_index.hpp"
#include "data/token_file.hpp"

namespace cadenza::data {

/// Text files as documents: document i is kBeginToken, the bytes of the i-th non-empty file,
/// kEndToken.
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
  // The file of the last document stays open, as the pieces of a long one are read in sequence.
  mutable std::mutex mutex_;
  mutable File open_;
  mutable std::int64_t open_document_ = -1;
};

// --- Tokens made by another program: files of integers ---

/// Documents of several files, in order. A document of a file with an index of Megatron-LM is what
/// that says; in other files it ends after data.document_end or with its file.
class TokensCorpus : public Corpus {
 public:
  /// @throws Error(usage) where a file has no index and data.document_end is missing
  TokensCorpus(const config::Data& data, std::int64_t vocab, const ScanProgress& progress);
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  void read(std::int64_t document, Range tokens, std::span<Token> out) const override;

 private:
  struct File {
    TokenFile tokens;
    FoundDocuments documents = {};
  };
  void open(const std::string& path, const config::Data& data, std::int64_t vocab);
  void find_ends(Token end, const ScanProgress& progress);
  void list_documents();

  std::vector<File> files_;
  std::vector<std::int64_t> first_;   // first document of each file
  std::vector<std::int64_t> begins_;  // begin of each document in its file: token, or sequence
  std::vector<std::int64_t> lengths_;
};

// --- Synthetic documents: lengths of a named distribution, tokens that a model can learn ---

/// Tokens of an order-1 Markov chain, drawn from the seed: with probability 0.7 the next token is
/// f(previous) for a random map f; otherwise it is uniform in [0, vocab). A model that knows f
/// reaches a loss of about 0.25 + 0.3 (ln vocab + 1.2) nats, one that does not, ln vocab. The chain
/// restarts every kBlock tokens, so that any range of a document can be read at the same cost.
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

// --- Documents that tell facts, continue with filler, and ask for the facts at their end ---

/// Documents of filler with facts in it and questions after it, all drawn from the seed; the tasks
/// are RULER's (arXiv 2404.06654), in tokens:
/// - a fact is three tokens, [kFact, key, value]; the share of the filler before it is its depth.
///   `needles`: the keys of a document differ. `values`: every key is told `answers` times, with
///   other values. `variables`: a chain is a variable with a value and `hops` variables, each with
///   the one before as its value;
/// - a question is [kAsk, key, value], [kAsk, key, its values in the order of the text], or [kAsk,
///   last variable, value of the first]: the targets after the key are the answer;
/// - the filler of a document repeats a phrase of its own.
/// `common_words` and `frequent_words` tell no facts: the words of the filler stand in random
/// order, ten times as often as the others, or by Zipf's law; [kAsk, the common words in ascending
/// order] or [kAsk, the most frequent words, the first one first]. All other tokens are words. A
/// key occurs only in its facts and questions, so a model that finds the key's earlier occurrence
/// has found the value; repeated phrases teach this. Even a perfect model cannot predict the first
/// occurrence of the phrase, the places of facts and their content.
class RetrievalCorpus : public Corpus {
 public:
  static constexpr Token kFact = 0;
  static constexpr Token kAsk = 1;
  static constexpr std::int64_t kFactTokens = 3;

  /// @throws Error(data) where a document is too short for its facts and questions
  RetrievalCorpus(const config::Data& data, std::int64_t vocab, std::uint64_t seed);
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  void read(std::int64_t document, Range tokens, std::span<Token> out) const override;
  std::vector<Question> questions(std::int64_t document) const override;

 private:
  struct Script;
  class Draws;
  Script script(std::int64_t document) const;
  void tell_facts(Script& made, Draws& draws) const;
  void count_words(Script& made, Draws& draws) const;
  std::int64_t question_tokens() const;

  config::Retrieval options_;
  std::int64_t words_;
  std::uint64_t seed_;
  std::vector<std::int64_t> lengths_;
};

}  // namespace cadenza::data
