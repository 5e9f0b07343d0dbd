// SPDX-License-Identifier: Apache-2.0
// Documents with facts and questions, against what the page of the data says of them.
#include <set>

#include "cadenza/data/batch.hpp"
#include "support.hpp"

namespace cadenza::data::test_retrieval {
namespace {

using ::testing::HasSubstr;

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
      expected.push_back({91 + 3 * static_cast<std::int64_t>(i) + 1, fact, fact - 2,
                          static_cast<std::int32_t>(i)});
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

// --- The other tasks ---

config::Data task_of(config::RetrievalTask task, std::int64_t length) {
  config::Data data = retrieval(length, 3, 2);
  data.retrieval.task = task;
  data.retrieval.answers = 3;
  data.retrieval.hops = 2;
  return data;
}

/// The answers of a document as its questions() say: places of the targets and of what tells them.
std::map<std::int32_t, std::vector<Question>> by_number(const Corpus& corpus,
                                                        std::int64_t document) {
  std::map<std::int32_t, std::vector<Question>> found;
  for (const Question& q : corpus.questions(document)) found[q.number].push_back(q);
  return found;
}

TEST(Retrieval, AKeyWithSeveralValuesIsAnsweredInTheirOrder) {
  const auto corpus = open_corpus(task_of(config::RetrievalTask::values, 120), kVocabulary, 7);
  for (std::int64_t document = 0; document < 50; ++document) {
    const std::vector<Token> tokens = tokens_of(*corpus, document);
    std::map<Token, std::vector<std::int64_t>> told;  // places of values, by key
    for (std::size_t i = 0; i < 120 - 10; ++i) {
      if (tokens[i] == kFact) told[tokens[i + 1]].push_back(static_cast<std::int64_t>(i + 2));
    }
    EXPECT_EQ(told.size(), 3u);
    const auto questions = by_number(*corpus, document);
    ASSERT_EQ(questions.size(), 2u);
    for (const auto& [number, answer] : questions) {
      const std::size_t begin = 110 + 5 * static_cast<std::size_t>(number);
      EXPECT_EQ(tokens[begin], kAsk);
      const auto& places = told.at(tokens[begin + 1]);
      ASSERT_EQ(answer.size(), 3u);
      ASSERT_EQ(places.size(), 3u);
      std::set<Token> values;
      for (const std::int64_t place : places)
        values.insert(tokens[static_cast<std::size_t>(place)]);
      EXPECT_EQ(values.size(), 3u) << "a value twice";
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(answer[i].token, static_cast<std::int64_t>(begin + 1 + i));
        EXPECT_EQ(answer[i].fact, places[i]);
        EXPECT_EQ(answer[i].fact_begin, places[0] - 2);
        EXPECT_EQ(tokens[begin + 2 + i], tokens[static_cast<std::size_t>(places[i])]);
      }
    }
  }
}

TEST(Retrieval, AVariableIsTracedToItsValue) {
  const auto corpus = open_corpus(task_of(config::RetrievalTask::variables, 120), kVocabulary, 7);
  for (std::int64_t document = 0; document < 50; ++document) {
    const std::vector<Token> tokens = tokens_of(*corpus, document);
    std::map<Token, std::size_t> told;  // place of the value, by variable
    for (std::size_t i = 0; i < 120 - 6; ++i) {
      if (tokens[i] != kFact) continue;
      EXPECT_TRUE(told.emplace(tokens[i + 1], i + 2).second) << "assigned twice";
    }
    EXPECT_EQ(told.size(), 9u);  // three chains of three
    for (const auto& [number, answer] : by_number(*corpus, document)) {
      const std::size_t begin = 114 + 3 * static_cast<std::size_t>(number);
      EXPECT_EQ(tokens[begin], kAsk);
      std::size_t place = told.at(tokens[begin + 1]);
      for (int hop = 0; hop < 2; ++hop) {
        const std::size_t earlier = told.at(tokens[place]);
        EXPECT_LT(earlier, place) << "assigned before it is known";
        place = earlier;
      }
      EXPECT_FALSE(told.contains(tokens[place]));
      EXPECT_EQ(tokens[begin + 2], tokens[place]);
      ASSERT_EQ(answer.size(), 1u);
      EXPECT_EQ(answer[0].token, static_cast<std::int64_t>(begin + 1));
      EXPECT_EQ(answer[0].fact, static_cast<std::int64_t>(place));
      EXPECT_EQ(answer[0].fact_begin, static_cast<std::int64_t>(place - 2));
    }
  }
}

TEST(Retrieval, WordsAreCounted) {
  for (const std::int64_t length : {260, 1000, 4000}) {
    for (const auto task :
         {config::RetrievalTask::common_words, config::RetrievalTask::frequent_words}) {
      const auto corpus = open_corpus(task_of(task, length), kVocabulary, 7);
      std::set<std::vector<Token>> answers;
      for (std::int64_t document = 0; document < 50; ++document) {
        std::vector<Token> tokens = tokens_of(*corpus, document);
        const std::vector<Token> answer(tokens.end() - 3, tokens.end());
        tokens.resize(tokens.size() - 3);
        EXPECT_EQ(tokens.back(), kAsk);
        tokens.pop_back();
        std::map<Token, std::int64_t> counts;
        for (const Token token : tokens) {
          EXPECT_GE(token, kFirstWord);
          ++counts[token];
        }
        std::vector<std::pair<std::int64_t, Token>> most;
        for (const auto& [token, count] : counts) most.emplace_back(count, token);
        std::ranges::sort(most, std::greater());
        EXPECT_GT(most[2].first, most[3].first) << "which ones can be told";
        std::vector<Token> wanted = {most[0].second, most[1].second, most[2].second};
        if (task == config::RetrievalTask::common_words) {
          EXPECT_GE(most[2].first, 3 * most[3].first);
          std::ranges::sort(wanted);
        } else {
          EXPECT_TRUE(most[0].first > most[1].first && most[1].first > most[2].first);
        }
        EXPECT_EQ(answer, wanted);
        const auto questions = corpus->questions(document);
        ASSERT_EQ(questions.size(), 3u);
        for (std::int64_t i = 0; i < 3; ++i) {
          EXPECT_EQ(questions[static_cast<std::size_t>(i)], (Question{length - 4 + i, 0, 0, 0}));
        }
        answers.insert(answer);
      }
      EXPECT_GT(answers.size(), 45u);
    }
  }
}

TEST(Retrieval, AnyRangeOfAnyTaskIsThatOfTheDocument) {
  for (const auto task :
       {config::RetrievalTask::values, config::RetrievalTask::variables,
        config::RetrievalTask::common_words, config::RetrievalTask::frequent_words}) {
    const auto corpus = open_corpus(task_of(task, 270), kVocabulary, 5);
    const std::vector<Token> whole = tokens_of(*corpus, 9);
    for (std::int64_t begin = 0; begin < 270; begin += 7) {
      for (std::int64_t end = begin; end <= 270; end += 9) {
        std::vector<Token> part(static_cast<std::size_t>(end - begin));
        corpus->read(9, {begin, end}, part);
        ASSERT_EQ(part, std::vector<Token>(whole.begin() + begin, whole.begin() + end));
      }
    }
  }
}

}  // namespace
}  // namespace cadenza::data::test_retrieval
