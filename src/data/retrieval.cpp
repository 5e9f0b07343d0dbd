// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/at.hpp"
#include "data/corpora.hpp"

#include <algorithm>
#include <array>

#include "cadenza/base/error.hpp"
#include "cadenza/base/hash.hpp"
#include "cadenza/base/random.hpp"
#include "data/lengths.hpp"

namespace cadenza::data {
namespace {

constexpr std::uint64_t kStream = Hasher().add("retrieval").value();
constexpr std::uint64_t kPhraseStream = Hasher().add("retrieval.phrase").value();
constexpr Token kFirstWord = 2;

/// The sequence of random numbers of one document.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t document)
      : seed_(seed), stream_(kStream ^ mix64(document)) {}
  std::int64_t below(std::int64_t count) {
    return static_cast<std::int64_t>(random_bits(seed_, stream_, next_++) %
                                     static_cast<std::uint64_t>(count));
  }
  double between(double low, double high) {
    return low + (high - low) * random_uniform(seed_, stream_, next_++);
  }
  /// Draws `count` different numbers below `all`, in any order.
  std::vector<std::int64_t> different(std::int64_t count, std::int64_t all) {
    std::vector<std::int64_t> drawn;
    while (static_cast<std::int64_t>(drawn.size()) < count) {
      const std::int64_t one = below(all);
      if (std::ranges::find(drawn, one) == drawn.end()) drawn.push_back(one);
    }
    return drawn;
  }

 private:
  std::uint64_t seed_, stream_;
  std::uint64_t next_ = 0;
};

}  // namespace

/// The plan of a document, from which any token follows without those before it.
struct RetrievalCorpus::Script {
  struct Fact {
    std::int64_t begin;  ///< place of its first token
    Token key, value;
  };
  std::vector<Fact> facts;  ///< ascending
  std::vector<Token> keys;  ///< ascending
  std::vector<std::size_t> asked;
  std::int64_t questions_begin;
  std::int64_t phrase;  ///< length of the phrase, tokens

  /// The word with this number among those that are no keys.
  Token word(std::int64_t number) const {
    auto word = static_cast<Token>(kFirstWord + number);
    for (const Token key : keys) word += key <= word ? 1 : 0;
    return word;
  }
  static Token part(Token what, const Fact& fact, std::int64_t i) {
    return std::array{what, fact.key, fact.value}[at(i)];
  }
};

RetrievalCorpus::RetrievalCorpus(const config::Data& data, std::int64_t vocab, std::uint64_t seed)
    : options_(data.retrieval),
      words_(vocab - kFirstWord),
      seed_(seed),
      lengths_(synthetic_lengths(data, seed)) {
  const std::int64_t least = kFactTokens * (options_.facts + options_.questions);
  const std::int64_t shortest = std::ranges::min(lengths_);
  if (shortest < least) {
    fail(ExitCode::data,
         "data.lengths: found a document of {} tokens; valid: {} or more, as data.retrieval has {} "
         "facts and {} questions of {} tokens in every document",
         shortest, least, options_.facts, options_.questions, kFactTokens);
  }
}

RetrievalCorpus::Script RetrievalCorpus::script(std::int64_t document) const {
  Draws draws(seed_, static_cast<std::uint64_t>(document));
  Script made;
  made.questions_begin = lengths_[at(document)] - kFactTokens * options_.questions;
  const std::int64_t filler = made.questions_begin - kFactTokens * options_.facts;
  std::vector<std::int64_t> before;  // tokens of filler before each fact
  for (std::int64_t i = 0; i < options_.facts; ++i) {
    const double depth = draws.between(options_.depth_min, options_.depth_max);
    const double tokens = depth * static_cast<double>(filler + 1);
    before.push_back(std::min(filler, static_cast<std::int64_t>(tokens)));
  }
  std::ranges::sort(before);
  const std::vector<std::int64_t> keys = draws.different(options_.facts, words_);
  for (const std::int64_t key : keys) made.keys.push_back(static_cast<Token>(kFirstWord + key));
  std::ranges::sort(made.keys);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    made.facts.push_back({before[i] + static_cast<std::int64_t>(i) * kFactTokens,
                          static_cast<Token>(kFirstWord + keys[i]),
                          made.word(draws.below(words_ - options_.facts))});
  }
  for (const std::int64_t fact : draws.different(options_.questions, options_.facts)) {
    made.asked.push_back(static_cast<std::size_t>(fact));
  }
  made.phrase = options_.phrase - draws.below(options_.phrase / 2 + 1);
  return made;
}

void RetrievalCorpus::read(std::int64_t document, Range tokens, std::span<Token> out) const {
  const Script script = this->script(document);
  const std::uint64_t phrase = kPhraseStream ^ mix64(static_cast<std::uint64_t>(document));
  std::int64_t facts = 0;  // number of facts that begin at or before a token
  for (std::int64_t i = tokens.begin; i < tokens.end; ++i) {
    Token& token = out[at(i - tokens.begin)];
    if (i >= script.questions_begin) {
      const std::int64_t in_questions = i - script.questions_begin;
      const auto question = static_cast<std::size_t>(in_questions / kFactTokens);
      token = Script::part(kAsk, script.facts[script.asked[question]], in_questions % kFactTokens);
      continue;
    }
    const auto known = static_cast<std::int64_t>(script.facts.size());
    while (facts < known && script.facts[at(facts)].begin <= i) ++facts;
    if (facts > 0) {
      const Script::Fact& last = script.facts[at(facts - 1)];
      if (i - last.begin < kFactTokens) {
        token = Script::part(kFact, last, i - last.begin);
        continue;
      }
    }
    const auto word = static_cast<std::uint64_t>((i - kFactTokens * facts) % script.phrase);
    const auto others = static_cast<std::uint64_t>(words_ - options_.facts);
    token = script.word(static_cast<std::int64_t>(random_bits(seed_, phrase, word) % others));
  }
}

std::vector<Question> RetrievalCorpus::questions(std::int64_t document) const {
  const Script script = this->script(document);
  std::vector<Question> questions;
  std::int64_t key = script.questions_begin + 1;
  for (const std::size_t fact : script.asked) {
    const std::int64_t begin = script.facts[fact].begin;
    questions.push_back({key, begin + kFactTokens - 1, begin});
    key += kFactTokens;
  }
  return questions;
}

}  // namespace cadenza::data
