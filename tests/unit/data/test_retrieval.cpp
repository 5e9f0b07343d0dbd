// SPDX-License-Identifier: Apache-2.0
// Documents with facts and questions, against what the page of the data says of them.
#include <set>

#include "cadenza/data/batch.hpp"
#include "support.hpp"

namespace cadenza::data {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kVocabulary = 66;
constexpr Token kFact = 0, kAsk = 1, kFirstWord = 2;

config::Data retrieval(std::int64_t length, std::int64_t facts, std::int64_t questions) {
  config::Data data;
  data.source = config::Source::retrieval;
  data.documents = 50;
  data.max_document = 4096;
  data.lengths.distribution = config::Distribution::constant;
  data.lengths.median = static_cast<double>(length);
  data.retrieval.facts = facts;
  data.retrieval.questions = questions;
  return data;
}

std::vector<Token> tokens_of(const Corpus& corpus, std::int64_t document) {
  const std::int64_t length = corpus.lengths()[static_cast<std::size_t>(document)];
  std::vector<Token> tokens(static_cast<std::size_t>(length));
  corpus.read(document, {0, length}, tokens);
  return tokens;
}

struct Said {
  std::map<Token, std::pair<Token, std::size_t>> facts;  ///< value and its place, by key
  std::vector<std::size_t> begins;                       ///< filler before each fact
  std::vector<Token> filler;
  std::vector<Token> asked;  ///< keys
};

/// Reads a document as the page says it is written.
Said understand(const std::vector<Token>& tokens) {
  Said said;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= kFirstWord) {
      said.filler.push_back(tokens[i]);
      EXPECT_TRUE(said.asked.empty()) << "filler after a question";
      continue;
    }
    if (i + 2 >= tokens.size()) {
      ADD_FAILURE() << "half a fact";
      return said;
    }
    const Token key = tokens[i + 1], value = tokens[i + 2];
    EXPECT_TRUE(key >= kFirstWord && key < kVocabulary) << key;
    EXPECT_TRUE(value >= kFirstWord && value < kVocabulary) << value;
    if (tokens[i] == kFact) {
      EXPECT_TRUE(said.facts.emplace(key, std::pair(value, i + 2)).second) << "a key twice";
      said.begins.push_back(said.filler.size());
    } else {
      EXPECT_EQ(tokens[i], kAsk);
      EXPECT_TRUE(said.facts.contains(key));
      EXPECT_EQ(said.facts[key].first, value);
      said.asked.push_back(key);
    }
    i += 2;
  }
  for (const auto& [key, fact] : said.facts) {
    EXPECT_EQ(std::ranges::count(said.filler, key), 0) << "a key is said elsewhere";
    for (const auto& [other, told] : said.facts) EXPECT_NE(told.first, key);
  }
  return said;
}

TEST(Retrieval, DocumentsTellWhatTheyAskFor) {
  const config::Data data = retrieval(100, 6, 3);
  const auto corpus = open_corpus(data, kVocabulary, 7);
  std::set<std::vector<Token>> different;
  for (std::int64_t document = 0; document < 50; ++document) {
    const std::vector<Token> tokens = tokens_of(*corpus, document);
    const Said said = understand(tokens);
    EXPECT_EQ(said.facts.size(), 6u);
    EXPECT_EQ(said.asked.size(), 3u);
    EXPECT_EQ(std::set(said.asked.begin(), said.asked.end()).size(), 3u);
    EXPECT_EQ(said.filler.size(), 100u - 27u);
    std::vector<Question> expected;
    for (std::size_t i = 0; i < 3; ++i) {
      const auto fact = static_cast<std::int64_t>(said.facts.at(said.asked[i]).second);
      expected.push_back({91 + 3 * static_cast<std::int64_t>(i) + 1, fact, fact - 2});
    }
    EXPECT_EQ(corpus->questions(document), expected);
    different.insert(tokens);
  }
  EXPECT_EQ(different.size(), 50u);
}

TEST(Retrieval, FillerRepeatsAPhrase) {
  config::Data data = retrieval(200, 2, 1);
  data.retrieval.phrase = 10;
  const auto corpus = open_corpus(data, kVocabulary, 3);
  std::set<std::size_t> lengths;
  for (std::int64_t document = 0; document < 50; ++document) {
    const std::vector<Token> filler = understand(tokens_of(*corpus, document)).filler;
    const auto repeats = [&](std::size_t n) {
      return std::equal(filler.begin() + static_cast<std::ptrdiff_t>(n), filler.end(),
                        filler.begin());
    };
    std::size_t length = 1;
    while (!repeats(length)) ++length;
    EXPECT_TRUE(length >= 5 && length <= 10) << length;
    lengths.insert(length);
  }
  EXPECT_EQ(lengths.size(), 6u);
}

TEST(Retrieval, FactsStandAtTheirDepth) {
  config::Data data = retrieval(1000, 1, 1);
  data.retrieval.depth_min = 0.25;
  data.retrieval.depth_max = 0.5;
  const auto corpus = open_corpus(data, kVocabulary, 3);
  std::set<std::size_t> places;
  for (std::int64_t document = 0; document < 50; ++document) {
    const Said said = understand(tokens_of(*corpus, document));
    const double depth = static_cast<double>(said.begins[0]) / 994.0;
    EXPECT_TRUE(depth >= 0.249 && depth <= 0.501) << depth;
    places.insert(said.begins[0]);
  }
  EXPECT_GT(places.size(), 30u);
}

TEST(Retrieval, AnyRangeIsThatOfTheDocument) {
  const auto corpus = open_corpus(retrieval(60, 8, 5), kVocabulary, 5);
  const std::vector<Token> whole = tokens_of(*corpus, 9);
  for (std::int64_t begin = 0; begin < 60; ++begin) {
    for (std::int64_t end = begin; end <= 60; ++end) {
      std::vector<Token> part(static_cast<std::size_t>(end - begin));
      corpus->read(9, {begin, end}, part);
      ASSERT_EQ(part, std::vector<Token>(whole.begin() + begin, whole.begin() + end));
    }
  }
}

TEST(Retrieval, APieceAsksForWhatItTells) {
  const std::vector<Question> all = {{20, 3, 1}, {23, 12, 10}, {26, 10, 8}};
  EXPECT_EQ(questions_within(all, {0, 30}), all);
  EXPECT_EQ(questions_within(all, {8, 30}), (std::vector<Question>{{15, 4, 2}, {18, 2, 0}}));
  EXPECT_EQ(questions_within(all, {0, 24}), (std::vector<Question>{{20, 3, 1}}))
      << "the answer to the second is token 24";
  EXPECT_EQ(questions_within(all, {9, 30}), (std::vector<Question>{{14, 3, 1}}))
      << "the key of the third fact is cut off, its value is not";
  config::Data data = retrieval(64, 4, 2);
  const auto whole = open_corpus(data, kVocabulary, 5);
  data.max_document = 40;  // questions are in the second piece
  const auto cut = open_corpus(data, kVocabulary, 5);
  for (std::int64_t document = 0; document < 50; ++document) {
    EXPECT_TRUE(cut->questions(2 * document).empty());
    EXPECT_EQ(cut->questions(2 * document + 1),
              questions_within(whole->questions(document), {40, 64}));
  }
}

TEST(Retrieval, SaysWhichDocumentIsTooShort) {
  EXPECT_NO_THROW(open_corpus(retrieval(18, 4, 2), kVocabulary, 1));
  try {
    open_corpus(retrieval(17, 4, 2), kVocabulary, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    EXPECT_THAT(error.what(), HasSubstr("found a document of 17 tokens; valid: 18 or more"));
  }
}

}  // namespace
}  // namespace cadenza::data
