// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "support.hpp"

namespace cadenza::data::test_packer {
namespace {

using ::testing::ElementsAre;

Packer packer(const Corpus& corpus, std::int64_t tokens, std::int64_t microbatch,
              bool shuffle = false, std::uint64_t seed = 1) {
  config::Experiment experiment;
  experiment.data.shuffle = shuffle;
  experiment.batch.tokens = tokens;
  experiment.batch.microbatch = microbatch;
  experiment.seed = seed;
  return Packer(corpus, experiment);
}

std::vector<std::vector<BatchDocument>> layout(const Batch& batch) {
  std::vector<std::vector<BatchDocument>> all;
  for (const Microbatch& microbatch : batch.microbatches) all.push_back(microbatch.documents);
  return all;
}

std::vector<Token> stream(const Corpus& corpus, const Packer& packer, std::int64_t steps) {
  std::vector<Token> all;
  for (std::int64_t step = 0; step < steps; ++step) {
    for (const Microbatch& microbatch : packer.batch(step).microbatches) {
      const auto tokens = read_tokens(corpus, microbatch);
      all.insert(all.end(), tokens.begin(), tokens.end());
    }
  }
  return all;
}

TEST(Packer, SplitsADocumentThatDoesNotFit) {
  const MemoryCorpus corpus = numbered({3, 6, 1});
  const Packer fixed = packer(corpus, 8, 4);
  using Microbatches = std::vector<std::vector<BatchDocument>>;
  EXPECT_EQ(layout(fixed.batch(0)), (Microbatches{{{0, {0, 3}}, {1, {0, 1}}}, {{1, {1, 5}}}}));
  // The rest of document 1 crosses the steps; then the corpus begins again.
  EXPECT_EQ(layout(fixed.batch(1)),
            (Microbatches{{{1, {5, 6}}, {2, {0, 1}}, {0, {0, 2}}}, {{0, {2, 3}}, {1, {0, 3}}}}));
  EXPECT_THAT(read_tokens(corpus, fixed.batch(1).microbatches[0]), ElementsAre(8, 9, 0, 1));
}

TEST(Packer, CountsTokensTargetsAndDocuments) {
  const MemoryCorpus corpus = numbered({3, 6, 1});
  const Batch batch = packer(corpus, 8, 4).batch(1);
  EXPECT_EQ(batch.step, 1);
  EXPECT_EQ(batch.microbatches[0].tokens(), 4);
  EXPECT_EQ(batch.tokens(), 8);
  EXPECT_EQ(batch.documents(), 5);
  EXPECT_EQ(batch.targets(), 3);
}

TEST(Packer, OneStepMayHoldManyPasses) {
  const MemoryCorpus corpus = numbered({2, 1});
  EXPECT_THAT(stream(corpus, packer(corpus, 8, 8), 1), ElementsAre(0, 1, 2, 0, 1, 2, 0, 1));
}

TEST(Packer, DocumentsOfOneToken) {
  const MemoryCorpus corpus = numbered({1, 1, 1});
  for (const bool shuffle : {false, true}) {
    const Batch batch = packer(corpus, 10, 5, shuffle).batch(3);
    EXPECT_EQ(batch.documents(), 10);
    EXPECT_EQ(batch.targets(), 0);
  }
  const MemoryCorpus single = numbered({1});
  EXPECT_EQ(packer(single, 4, 2, true).batch(9).documents(), 4);
}

TEST(Packer, LastMicrobatchOfAStepTakesTheRest) {
  const MemoryCorpus corpus = numbered({100});
  const Batch batch = packer(corpus, 10, 4).batch(0);
  ASSERT_EQ(batch.microbatches.size(), 3u);
  EXPECT_EQ(batch.microbatches[2].tokens(), 2);
}

TEST(Packer, Errors) {
  const MemoryCorpus corpus = numbered({1});
  const MemoryCorpus empty = numbered({});
  expect_error(ExitCode::data, {"no documents"}, [&] { packer(empty, 4, 2); });
  expect_error(ExitCode::usage, {"tokens 0"}, [&] { packer(corpus, 0, 2); });
  expect_error(ExitCode::usage, {"microbatch 0"}, [&] { packer(corpus, 4, 0); });
}

// Random corpora and shapes.
struct Case {
  MemoryCorpus corpus = MemoryCorpus({});
  std::int64_t total = 0;
  std::int64_t tokens = 0;
  std::int64_t microbatch = 0;
  bool shuffle = false;
};

Case random_case(std::uint32_t seed) {
  std::mt19937 random(seed);
  const bool tiny = random() % 4 == 0;
  std::vector<std::int64_t> lengths(1 + random() % 40);
  for (auto& length : lengths) length = 1 + random() % (tiny ? 2 : 60);
  Case result;
  result.total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  result.corpus = numbered(lengths);
  result.microbatch = 1 + random() % 50;
  result.tokens = result.microbatch * (1 + random() % 4);
  result.shuffle = seed % 2 == 1;
  return result;
}

class RandomPacking : public ::testing::TestWithParam<std::uint32_t> {};

// Oracle: the corpus as the list of its tokens, cut by counting.
TEST_P(RandomPacking, EveryPassHoldsEveryTokenOnceInOrder) {
  const Case c = random_case(GetParam());
  const Packer fixed = packer(c.corpus, c.tokens, c.microbatch, c.shuffle);
  const std::int64_t steps = 3 * c.total / c.tokens + 2;
  const auto all = stream(c.corpus, fixed, steps);
  ASSERT_EQ(std::ssize(all), steps * c.tokens);
  const auto whole = documents(c.corpus);
  std::set<std::vector<Token>> orders;
  for (std::int64_t pass = 0; (pass + 1) * c.total <= std::ssize(all); ++pass) {
    std::vector<Token> tokens(all.begin() + pass * c.total, all.begin() + (pass + 1) * c.total);
    orders.insert(tokens);
    // Documents stay whole and in order within, whatever the order of documents.
    std::set<Token> firsts;
    for (const auto& document : whole) firsts.insert(document.front());
    for (std::size_t i = 1; i < tokens.size(); ++i) {
      if (!firsts.contains(tokens[i])) {
        ASSERT_EQ(tokens[i], tokens[i - 1] + 1);
      }
    }
    if (c.shuffle) std::ranges::sort(tokens);
    for (std::int64_t i = 0; i < c.total; ++i) ASSERT_EQ(tokens[static_cast<std::size_t>(i)], i);
  }
  if (!c.shuffle) {
    EXPECT_EQ(orders.size(), 1u);
  } else if (whole.size() > 5) {
    EXPECT_GT(orders.size(), 1u);
  }
}

TEST_P(RandomPacking, MicrobatchesAreFullAndDocumentsSplitAtTheirEdgesOnly) {
  const Case c = random_case(GetParam());
  const Packer fixed = packer(c.corpus, c.tokens, c.microbatch, c.shuffle);
  BatchDocument previous{-1, {0, 0}};
  for (std::int64_t step = 0; step < 8; ++step) {
    const Batch batch = fixed.batch(step);
    ASSERT_EQ(std::ssize(batch.microbatches), c.tokens / c.microbatch);
    for (const Microbatch& microbatch : batch.microbatches) {
      ASSERT_EQ(microbatch.tokens(), c.microbatch);
      for (std::size_t i = 0; i < microbatch.documents.size(); ++i) {
        const BatchDocument& document = microbatch.documents[i];
        const auto length = c.corpus.lengths()[static_cast<std::size_t>(document.corpus_document)];
        ASSERT_GT(document.length(), 0);
        ASSERT_LE(document.tokens.end, length);
        if (i > 0) {
          ASSERT_EQ(document.tokens.begin, 0);
        }
        if (i + 1 < microbatch.documents.size()) {
          ASSERT_EQ(document.tokens.end, length);
        }
        if (document.tokens.begin > 0) {
          ASSERT_EQ(document.corpus_document, previous.corpus_document);
          ASSERT_EQ(document.tokens.begin, previous.tokens.end);
        }
        previous = document;
      }
    }
  }
}

TEST_P(RandomPacking, IsTheSameInAnyOrderOfCalls) {
  const Case c = random_case(GetParam());
  const Packer sequential = packer(c.corpus, c.tokens, c.microbatch, c.shuffle);
  const Packer jumping = packer(c.corpus, c.tokens, c.microbatch, c.shuffle);
  std::vector<std::vector<std::vector<BatchDocument>>> expected;
  for (std::int64_t step = 0; step < 20; ++step) expected.push_back(layout(sequential.batch(step)));
  std::mt19937 random(GetParam());
  for (int trial = 0; trial < 40; ++trial) {
    const std::size_t step = random() % expected.size();
    ASSERT_EQ(layout(jumping.batch(static_cast<std::int64_t>(step))), expected[step]) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, RandomPacking, ::testing::Range(0u, 40u));

TEST(Shuffle, IsGivenBySeedAndPass) {
  const MemoryCorpus corpus = numbered(std::vector<std::int64_t>(30, 1));
  const auto order = [&](std::uint64_t seed, std::int64_t pass) {
    return layout(packer(corpus, 30, 30, true, seed).batch(pass))[0];
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_NE(order(1, 0), order(2, 0));
  EXPECT_NE(order(1, 0), layout(packer(corpus, 30, 30).batch(0))[0]);
}

TEST(Shuffle, IsUniform) {
  const MemoryCorpus corpus = numbered({1, 1, 1});
  const Packer shuffled = packer(corpus, 3, 3, true);
  std::map<std::vector<Token>, int> counts;
  for (int pass = 0; pass < 6000; ++pass) {
    ++counts[read_tokens(corpus, shuffled.batch(pass).microbatches[0])];
  }
  ASSERT_EQ(counts.size(), 6u);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 1000, 150);
}

TEST(Shuffle, ThreadsSeeTheSameBatches) {
  const MemoryCorpus corpus = numbered({5, 9, 2, 7, 1, 1, 30, 4});
  const Packer shuffled = packer(corpus, 24, 8, true);
  std::vector<std::vector<std::vector<BatchDocument>>> expected;
  for (std::int64_t step = 0; step < 200; ++step) expected.push_back(layout(shuffled.batch(step)));
  std::array<int, 4> wrong{};
  std::vector<std::jthread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const std::size_t step = (i * (2 * t + 1)) % expected.size();
        wrong[t] += layout(shuffled.batch(static_cast<std::int64_t>(step))) != expected[step];
      }
    });
  }
  threads.clear();
  EXPECT_THAT(wrong, ::testing::Each(0));
}

}  // namespace
}  // namespace cadenza::data::test_packer
