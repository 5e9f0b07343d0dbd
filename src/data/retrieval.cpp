// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/hash.hpp"
#include "cadenza/base/random.hpp"
#include "data/corpora.hpp"
#include "data/lengths.hpp"

namespace cadenza::data {
namespace {

using config::RetrievalTask;

constexpr std::uint64_t kStream = Hasher().add("retrieval").value();
constexpr std::uint64_t kPhraseStream = Hasher().add("retrieval.phrase").value();
constexpr std::uint64_t kWordsStream = Hasher().add("retrieval.words").value();
constexpr Token kFirstWord = 2;
constexpr std::int64_t kCommon = 10;  ///< occurrences of a common word for one of another
constexpr double kZipf = 2.0;         ///< the exponent of RULER's frequent words

/// A permutation of [0, count) that the seed decides, of which any element follows alone: four
/// rounds of a Feistel network over the next even number of bits, until the result is below count.
class Permutation {
 public:
  Permutation(std::uint64_t seed, std::uint64_t stream, std::int64_t count)
      : seed_(seed), stream_(stream), count_(static_cast<std::uint64_t>(count)) {
    while ((std::uint64_t{1} << (2 * half_)) < count_) ++half_;
  }
  std::int64_t operator()(std::int64_t index) const {
    auto value = static_cast<std::uint64_t>(index);
    do {
      value = mixed(value);
    } while (value >= count_);
    return static_cast<std::int64_t>(value);
  }

 private:
  std::uint64_t mixed(std::uint64_t value) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_) - 1;
    std::uint64_t left = value >> half_, right = value & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const std::uint64_t bits = random_bits(seed_, stream_, (right << 2) + round);
      left = std::exchange(right, left ^ (bits & mask));
    }
    return left << half_ | right;
  }
  std::uint64_t seed_, stream_, count_;
  int half_ = 1;
};

}  // namespace

/// The sequence of random numbers of one document.
class RetrievalCorpus::Draws {
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

/// The plan of a document, from which any token follows without those before it.
struct RetrievalCorpus::Script {
  struct Fact {
    std::int64_t begin;  ///< place of its first token
    Token key, value;
    std::int64_t value_place() const { return begin + kFactTokens - 1; }
  };
  /// A question: kAsk, a key where it has one, and the answer.
  struct Asked {
    std::vector<Token> tokens;       ///< after kAsk
    std::vector<std::int64_t> told;  ///< where each token of the answer is told
    std::int64_t first_told = 0;     ///< begin of the first fact that it needs
    std::size_t key_tokens() const { return tokens.size() - told.size(); }
  };
  std::int64_t questions_begin;
  std::vector<Fact> facts;  ///< ascending
  std::vector<Token> keys;  ///< ascending
  std::vector<Asked> asked;
  std::int64_t phrase = 1;  ///< length of the phrase, tokens

  // Where words are counted: the words, and the number of occurrences of each and all before it.
  std::vector<Token> counted;
  std::vector<std::int64_t> ends;

  /// The word with this number among those that are no keys.
  Token word(std::int64_t number) const {
    auto word = static_cast<Token>(kFirstWord + number);
    for (const Token key : keys) word += key <= word ? 1 : 0;
    return word;
  }
};

std::int64_t RetrievalCorpus::question_tokens() const {
  if (!options_.tells_facts()) return 1 + options_.answers;
  return 2 + (options_.task == RetrievalTask::values ? options_.answers : 1);
}

RetrievalCorpus::RetrievalCorpus(const config::Data& data, std::int64_t vocab, std::uint64_t seed)
    : options_(data.retrieval),
      words_(vocab - kFirstWord),
      seed_(seed),
      lengths_(synthetic_lengths(data, seed)) {
  const std::int64_t shortest = std::ranges::min(lengths_);
  if (!options_.tells_facts()) {
    // So many words that counts of common ones differ from the others', and those of frequent ones.
    const std::int64_t n = options_.answers + 1;
    const std::int64_t filler =
        options_.task == RetrievalTask::common_words ? 2 * kCommon * n : 4 * n * n * n;
    if (shortest >= filler + question_tokens()) return;
    fail(ExitCode::data,
         "data.lengths: found a document of {} tokens; valid: {} or more, in which {} words can be "
         "told from others by their number",
         shortest, filler + question_tokens(), options_.answers);
  }
  const std::int64_t facts = options_.facts * options_.links();
  const std::int64_t least = kFactTokens * facts + question_tokens() * options_.questions;
  if (shortest < least) {
    fail(ExitCode::data,
         "data.lengths: found a document of {} tokens; valid: {} or more, as data.retrieval has {} "
         "facts of {} tokens and {} questions of {} tokens in every document",
         shortest, least, facts, kFactTokens, options_.questions, question_tokens());
  }
}

RetrievalCorpus::Script RetrievalCorpus::script(std::int64_t document) const {
  Draws draws(seed_, static_cast<std::uint64_t>(document));
  Script made;
  const std::int64_t questions = options_.tells_facts() ? options_.questions : 1;
  made.questions_begin = lengths_[at(document)] - question_tokens() * questions;
  options_.tells_facts() ? tell_facts(made, draws) : count_words(made, draws);
  return made;
}

/// Draws places, keys and values of the facts. The facts of a key or chain stand anywhere, in the
/// order in which the question needs them.
void RetrievalCorpus::tell_facts(Script& made, Draws& draws) const {
  const bool chains = options_.task == RetrievalTask::variables;
  const std::int64_t links = options_.links();
  const std::int64_t count = options_.facts * links;
  const std::int64_t filler = made.questions_begin - kFactTokens * count;
  std::vector<std::int64_t> before;  // tokens of filler before each fact
  for (std::int64_t i = 0; i < count; ++i) {
    const double depth = draws.between(options_.depth_min, options_.depth_max);
    const double tokens = depth * static_cast<double>(filler + 1);
    before.push_back(std::min(filler, static_cast<std::int64_t>(tokens)));
  }
  std::ranges::sort(before);
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));  // facts by place
  std::iota(order.begin(), order.end(), 0);
  if (links > 1) order = draws.different(count, count);
  const std::vector<std::int64_t> keys = draws.different(chains ? count : options_.facts, words_);
  for (const std::int64_t key : keys) made.keys.push_back(static_cast<Token>(kFirstWord + key));
  std::ranges::sort(made.keys);
  std::vector<std::vector<std::int64_t>> told(static_cast<std::size_t>(options_.facts));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t group = order[at(i)] % options_.facts;
    const std::int64_t link = std::ssize(told[at(group)]);
    const auto key = [&](std::int64_t of_link) {
      return static_cast<Token>(kFirstWord + keys[at(chains ? group * links + of_link : group)]);
    };
    const std::int64_t others = words_ - std::ssize(made.keys);
    Token value = chains && link > 0 ? key(link - 1) : made.word(draws.below(others));
    const auto has_it = [&](std::int64_t fact) { return made.facts[at(fact)].value == value; };
    while (others >= links && std::ranges::any_of(told[at(group)], has_it)) {
      value = made.word(draws.below(others));
    }
    told[at(group)].push_back(i);
    made.facts.push_back({before[at(i)] + i * kFactTokens, key(link), value});
  }
  for (const std::int64_t group : draws.different(options_.questions, options_.facts)) {
    const auto fact = [&](std::int64_t i) { return made.facts[at(told[at(group)][at(i)])]; };
    Script::Asked& asked = made.asked.emplace_back();
    asked.first_told = fact(0).begin;
    asked.tokens.push_back(fact(links - 1).key);
    for (std::int64_t i = 0; i < (chains ? 1 : links); ++i) {
      asked.tokens.push_back(fact(i).value);
      asked.told.push_back(fact(i).value_place());
    }
  }
  made.phrase = options_.phrase - draws.below(options_.phrase / 2 + 1);
}

/// Gives every word a number of occurrences, and asks for those that occur most.
void RetrievalCorpus::count_words(Script& made, Draws& draws) const {
  const std::int64_t filler = made.questions_begin;
  const std::int64_t asked = options_.answers;
  const Permutation words(
      seed_, kWordsStream ^ mix64(static_cast<std::uint64_t>(draws.below(1 << 30))), words_);
  for (std::int64_t i = 0; i < words_; ++i) {
    made.counted.push_back(static_cast<Token>(kFirstWord + words(i)));
  }
  std::vector<std::int64_t> counts(static_cast<std::size_t>(words_), 0);
  if (options_.task == RetrievalTask::common_words) {
    const std::int64_t others =
        std::max<std::int64_t>(1, filler / (kCommon * asked + words_ - asked));
    std::fill_n(counts.begin(), asked, kCommon * others);
  } else {
    double all = 0;
    for (std::int64_t i = 0; i < words_; ++i) all += std::pow(static_cast<double>(i + 1), -kZipf);
    for (std::int64_t i = 0; i < words_; ++i) {
      counts[at(i)] = static_cast<std::int64_t>(static_cast<double>(filler) / all *
                                                std::pow(static_cast<double>(i + 1), -kZipf));
    }
  }
  // What is left goes to the words that are not asked for, the rarest first, in turn.
  std::int64_t left = filler - std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  for (std::int64_t i = words_ - 1; left > 0; --left) {
    ++counts[at(i)];
    i = i > asked ? i - 1 : words_ - 1;
  }
  made.ends.resize(counts.size());
  std::partial_sum(counts.begin(), counts.end(), made.ends.begin());
  Script::Asked& question = made.asked.emplace_back();
  question.tokens.assign(made.counted.begin(), made.counted.begin() + asked);
  if (options_.task == RetrievalTask::common_words) std::ranges::sort(question.tokens);
  question.told.assign(static_cast<std::size_t>(asked), 0);  // by the whole document
}

void RetrievalCorpus::read(std::int64_t document, Range tokens, std::span<Token> out) const {
  const Script script = this->script(document);
  const std::uint64_t phrase = kPhraseStream ^ mix64(static_cast<std::uint64_t>(document));
  const Permutation order(seed_, kWordsStream ^ mix64(static_cast<std::uint64_t>(document)),
                          std::max<std::int64_t>(1, script.questions_begin));
  std::int64_t facts = 0;  // number of facts that begin at or before a token
  for (std::int64_t i = tokens.begin; i < tokens.end; ++i) {
    Token& token = out[at(i - tokens.begin)];
    if (i >= script.questions_begin) {
      const std::int64_t in_questions = i - script.questions_begin;
      const auto& asked = script.asked[at(in_questions / question_tokens())];
      const std::int64_t in_question = in_questions % question_tokens();
      token = in_question == 0 ? kAsk : asked.tokens[at(in_question - 1)];
      continue;
    }
    if (!script.counted.empty()) {
      const auto end = std::ranges::upper_bound(script.ends, order(i));
      token = script.counted[static_cast<std::size_t>(end - script.ends.begin())];
      continue;
    }
    const std::int64_t known = std::ssize(script.facts);
    while (facts < known && script.facts[at(facts)].begin <= i) ++facts;
    if (facts > 0) {
      const Script::Fact& last = script.facts[at(facts - 1)];
      if (i - last.begin < kFactTokens) {
        token = std::array{kFact, last.key, last.value}[at(i - last.begin)];
        continue;
      }
    }
    const auto word = static_cast<std::uint64_t>((i - kFactTokens * facts) % script.phrase);
    const auto others = static_cast<std::uint64_t>(words_ - std::ssize(script.keys));
    token = script.word(static_cast<std::int64_t>(random_bits(seed_, phrase, word) % others));
  }
}

std::vector<Question> RetrievalCorpus::questions(std::int64_t document) const {
  const Script script = this->script(document);
  std::vector<Question> questions;
  std::int64_t begin = script.questions_begin;
  for (std::size_t number = 0; number < script.asked.size(); ++number) {
    const Script::Asked& asked = script.asked[number];
    for (std::size_t i = 0; i < asked.told.size(); ++i) {
      questions.push_back({begin + static_cast<std::int64_t>(asked.key_tokens() + i), asked.told[i],
                           asked.first_told, static_cast<std::int32_t>(number)});
    }
    begin += question_tokens();
  }
  return questions;
}

}  // namespace cadenza::data
