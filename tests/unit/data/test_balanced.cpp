// SPDX-License-Identifier: Apache-2.0
// Packing by cost: `balanced` and `pooled`.
#include <array>
#include <cmath>
#include <map>
#include <random>
#include <thread>

#include "cadenza/cost/flops.hpp"
#include "support.hpp"

namespace cadenza::data::test_balanced {
namespace {

using config::Packing;
using ::testing::ElementsAre;
using Lengths = std::vector<std::int64_t>;

struct Options {
  Packing packing = Packing::balanced;
  std::int64_t tokens = 0;
  std::int64_t microbatch = 0;
  double longest = 1.25;
  std::int64_t break_even = 10;
  Lengths outliers = {};
};

Packer packer(const Corpus& corpus, const Options& options, bool shuffle = false) {
  config::Experiment experiment;
  experiment.data.shuffle = shuffle;
  experiment.batch = {options.tokens,
                      options.microbatch,
                      options.packing,
                      options.longest,
                      options.break_even,
                      options.outliers,
                      false};
  return Packer(corpus, experiment);
}

double cost(const Microbatch& microbatch, double break_even) {
  double total = 0;
  for (const BatchDocument& document : microbatch.documents) {
    const auto d = static_cast<double>(document.length());
    total += d * d / break_even + d;
  }
  return total;
}

/// Largest over mean of the costs of a step's microbatches.
double imbalance(const Batch& batch, double break_even) {
  double largest = 0;
  double total = 0;
  for (const Microbatch& microbatch : batch.microbatches) {
    largest = std::max(largest, cost(microbatch, break_even));
    total += cost(microbatch, break_even);
  }
  return largest * static_cast<double>(batch.microbatches.size()) / total;
}

Lengths long_tailed(std::uint32_t seed, std::size_t count, std::int64_t longest) {
  return data::long_tailed(seed, count, longest, 20, 1.4);
}

// By hand, break-even 10: costs of 8, 5, 4, 3, 2, 2 are 14.4, 7.5, 5.6, 3.9, 2.4, 2.4.
TEST(Pooled, DealsTheCostliestFirstToTheCheapest) {
  const MemoryCorpus corpus = numbered({3, 8, 2, 5, 2, 4});
  const Packer pooled = packer(corpus, {Packing::pooled, 24, 12});
  // 8 | 5; 4 to the second (13.1); 3 to the second (17.0); 2 to the first (16.8), 2 to the first.
  EXPECT_THAT(lengths(pooled.batch(0)), ElementsAre(Lengths{8, 2, 2}, Lengths{5, 4, 3}));
}

/// A document goes where it is computed first: replica 1 takes twice as long for everything.
TEST(Pooled, GivesASlowReplicaLess) {
  const MemoryCorpus corpus = numbered({8, 8, 8, 8, 8, 8});
  config::Experiment e;
  e.data.shuffle = false;
  e.batch = {48, 24, Packing::pooled, 4.0, 10, {}, false};
  e.parallel.data = 2;
  const auto counts = [&] {
    std::vector<std::size_t> found;
    for (const Microbatch& m : Packer(corpus, e).batch(0).microbatches) {
      found.push_back(m.documents.size());
    }
    return found;
  };
  EXPECT_THAT(counts(), ElementsAre(3, 3));
  e.attention.capacity = {{1.0, 50.0}};
  EXPECT_THAT(counts(), ElementsAre(4, 2));
  e.attention.capacity = {{0.0, 20.0}};
  EXPECT_THAT(counts(), ElementsAre(1, 5));
  e.attention.capacity = {{0.0, 30.0}, {1.0, 30.0}};
  EXPECT_THAT(counts(), ElementsAre(3, 3)) << "equally slow";
}

TEST(Balanced, CostsAreInProportionToCapacities) {
  for (const Packing packing : {Packing::balanced, Packing::pooled}) {
    const MemoryCorpus corpus = numbered(long_tailed(5, 4000, 400));
    config::Experiment e;
    e.batch = {4 * 4096, 4096, packing, 2.0, 500, {}, false};
    e.parallel.data = 4;
    e.attention.capacity = {{2.0, 50.0}};
    const Packer packer(corpus, e);
    for (const std::int64_t step : {0, 3}) {
      const Batch batch = packer.batch(step);
      ASSERT_EQ(batch.microbatches.size(), 4u);
      const double slow = cost(batch.microbatches[2], 500);
      for (const std::size_t other : {0u, 1u, 3u}) {
        EXPECT_NEAR(cost(batch.microbatches[other], 500) / slow, 2, 0.1) << other;
      }
    }
  }
}

TEST(Pooled, ForcesWhatFitsNowhere) {
  const MemoryCorpus corpus = numbered({7, 7, 7, 3});
  const Packer pooled = packer(corpus, {Packing::pooled, 24, 12, 1.0});
  // The third 7 has no room under 12 in either; 3 has room in the first; 7 is forced to the second.
  EXPECT_THAT(lengths(pooled.batch(0)), ElementsAre(Lengths{7, 3}, Lengths{7, 7}));
}

TEST(Pooled, CutsDocumentsAtTheStepAlone) {
  const MemoryCorpus corpus = numbered({10, 10});
  const Packer pooled = packer(corpus, {Packing::pooled, 16, 8});
  EXPECT_THAT(lengths(pooled.batch(0)), ElementsAre(Lengths{10}, Lengths{6}));
  EXPECT_THAT(lengths(pooled.batch(1)), ElementsAre(Lengths{10}, Lengths{4, 2}));
}

TEST(Balanced, TakesTheShortestWhereTheCheapestIsFull) {
  // Break-even 1: cost 8 -> 72, four ones -> 2 each. Ones have room beside neither 8 under 8.
  const MemoryCorpus corpus = numbered({7, 2, 2, 2, 2, 1});
  const Packer balanced = packer(corpus, {Packing::balanced, 16, 8, 1.0, 1});
  // 7 (56) | 2, 2, 2, 2 (6 each: full); 1 fits the first alone, the shorter and costlier one.
  EXPECT_THAT(lengths(balanced.batch(0)), ElementsAre(Lengths{7, 1}, Lengths{2, 2, 2, 2}));
}

TEST(Balanced, CarriesWhatDoesNotFitAndReadsLess) {
  const MemoryCorpus corpus = numbered({7, 7, 7, 3, 5, 5, 4, 4, 6, 6});
  const Packer balanced = packer(corpus, {Packing::balanced, 24, 12, 1.0});
  const Batch first = balanced.batch(0);
  EXPECT_THAT(lengths(first), ElementsAre(Lengths{7, 3}, Lengths{7}));
  const Batch second = balanced.batch(1);  // the 7, then 17 new tokens: 5 5 4 and 3 of the next 4
  EXPECT_THAT(lengths(second), ElementsAre(Lengths{7, 4}, Lengths{5, 5}));
  EXPECT_EQ(second.microbatches[0].documents[0], (BatchDocument{2, {0, 7}, 1}));
  const Batch third = balanced.batch(2);  // carries 3 of the second 4; 21 new: 1 6 6 7 1
  EXPECT_THAT(lengths(third), ElementsAre(Lengths{3, 6}, Lengths{7, 1, 1}));
  EXPECT_EQ(third.microbatches[0].documents[0], (BatchDocument{7, {0, 3}, 1}));
}

TEST(Balanced, OutliersWaitForOneOfEachMicrobatch) {
  const MemoryCorpus corpus = numbered({9, 1, 1, 1, 2, 2, 9, 1, 1, 1});
  const Packer balanced = packer(corpus, {Packing::balanced, 14, 7, 2.0, 10, {6}});
  // Step 0 reads 9 1 1 1 2: the 9 waits. Step 1 reads 2 9 1 1 1: both are released.
  EXPECT_THAT(lengths(balanced.batch(0)), ElementsAre(Lengths{2}, Lengths{1, 1, 1}));
  const Batch second = balanced.batch(1);
  EXPECT_THAT(lengths(second), ElementsAre(Lengths{9, 2}, Lengths{9, 1, 1, 1}));
  EXPECT_EQ(second.microbatches[0].documents[0].delay, 1);
  EXPECT_EQ(second.microbatches[1].documents[0].delay, 0);
}

TEST(Balanced, ReadsOnWhereAllDocumentsWait) {
  const MemoryCorpus corpus = numbered({8, 8, 8});
  const Packer balanced = packer(corpus, {Packing::balanced, 16, 4, 2.0, 10, {5}});
  const Batch batch = balanced.batch(0);  // two windows until the queue has four
  EXPECT_THAT(lengths(batch), ::testing::Each(ElementsAre(8)));
  EXPECT_EQ(batch.tokens(), 32);
}

TEST(Balanced, MayLeaveMicrobatchesEmpty) {
  const MemoryCorpus corpus = numbered({16});
  const Packer balanced = packer(corpus, {Packing::balanced, 16, 4, 4.0});
  EXPECT_THAT(lengths(balanced.batch(0)),
              ElementsAre(Lengths{16}, Lengths{}, Lengths{}, Lengths{}));
}

TEST(Balanced, Errors) {
  const MemoryCorpus corpus = numbered({11, 3});
  expect_error(ExitCode::usage, {"batch.longest", "10", "11", "data.max_document"}, [&] {
    packer(corpus, {Packing::balanced, 32, 8});
  });
  expect_error(ExitCode::usage, {"batch.outliers", "ascend"}, [&] {
    packer(corpus, {Packing::balanced, 32, 16, 1.25, 1, {9, 4}});
  });
  packer(corpus, {Packing::pooled, 32, 8});  // forced
}

TEST(BreakEven, EqualsTheLayersFlops) {
  config::Model model;
  model.layers = 2;
  model.d_model = 64;
  model.heads = 4;
  model.kv_heads = 2;
  model.ffn = 100;
  model.vocab = 50;
  const double d = cost::break_even(model);
  const double weights = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 100 + 64 * 50 / 2.0;
  EXPECT_DOUBLE_EQ(4 * 64 * d * d / 2, 2 * weights * d);
}

struct Case {
  MemoryCorpus corpus = MemoryCorpus({});
  std::int64_t total = 0;
  Options options;
  bool shuffle = false;
};

Case random_case(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  Case result;
  const std::int64_t microbatch = draw(20, 80);
  const Lengths all = long_tailed(seed, static_cast<std::size_t>(draw(5, 65)), microbatch);
  result.total = std::accumulate(all.begin(), all.end(), std::int64_t{0});
  result.corpus = numbered(all);
  result.options = {Packing::balanced, microbatch * draw(1, 6), microbatch,
                    1.0 + 0.25 * static_cast<double>(draw(0, 3)), draw(1, 100)};
  if (draw(0, 1) == 1) result.options.outliers = {microbatch / 3, microbatch / 3 * 2};
  result.shuffle = draw(0, 1) == 1;
  return result;
}

class RandomBalancing : public ::testing::TestWithParam<std::uint32_t> {};

// A document's read step is its step less its delay. Documents that were read in the first 60 steps
// have all come after 600: together they are the beginning of the stream, every token as often as
// passes hold it.
TEST_P(RandomBalancing, LosesAndRepeatsNothing) {
  const Case c = random_case(GetParam());
  const Packer balanced = packer(c.corpus, c.options, c.shuffle);
  std::vector<std::int64_t> seen(static_cast<std::size_t>(c.total), 0);
  std::int64_t tokens = 0;
  for (std::int64_t step = 0; step < 600; ++step) {
    for (const Microbatch& microbatch : balanced.batch(step).microbatches) {
      const std::vector<Token> all = read_tokens(c.corpus, microbatch);
      std::size_t first = 0;
      for (const BatchDocument& document : microbatch.documents) {
        const auto length = static_cast<std::size_t>(document.length());
        if (step - document.delay < 60) {
          for (std::size_t i = first; i < first + length; ++i) {
            ++seen[static_cast<std::size_t>(all[i])];
          }
          tokens += document.length();
        }
        first += length;
      }
    }
  }
  EXPECT_GE(tokens, 30 * c.options.tokens);
  for (std::int64_t token = 0; token < c.total; ++token) {
    const std::int64_t passes = tokens / c.total;
    const std::int64_t count = seen[static_cast<std::size_t>(token)] - passes;
    if (c.shuffle) {
      ASSERT_TRUE(count == 0 || count == 1) << token;
    } else {
      ASSERT_EQ(count, token < tokens % c.total ? 1 : 0) << token;
    }
  }
}

TEST_P(RandomBalancing, CapsHoldAndNothingWaitsForEver) {
  const Case c = random_case(GetParam());
  const Packer balanced = packer(c.corpus, c.options, c.shuffle);
  const auto cap =
      static_cast<std::int64_t>(c.options.longest * static_cast<double>(c.options.microbatch));
  std::int64_t delay = 0;
  for (std::int64_t step = 0; step < 60; ++step) {
    const Batch batch = balanced.batch(step);
    EXPECT_EQ(std::ssize(batch.microbatches), c.options.tokens / c.options.microbatch);
    EXPECT_GT(batch.documents(), 0);
    for (const Microbatch& microbatch : batch.microbatches) {
      EXPECT_LE(microbatch.tokens(), cap);
      for (const BatchDocument& document : microbatch.documents) {
        EXPECT_GE(document.delay, 0);
        delay = std::max(delay, document.delay);
      }
    }
  }
  if (c.options.outliers.empty()) {
    EXPECT_LE(delay, 6);
  }
}

TEST_P(RandomBalancing, IsTheSameInAnyOrderAndFromAnyThread) {
  const Case c = random_case(GetParam());
  const Packer sequential = packer(c.corpus, c.options, c.shuffle);
  const Packer jumping = packer(c.corpus, c.options, c.shuffle);
  std::vector<Batch> expected;
  for (std::int64_t step = 0; step < 40; ++step) expected.push_back(sequential.batch(step));
  std::array<int, 3> wrong{};
  std::vector<std::jthread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<std::uint32_t>(t));
      for (int trial = 0; trial < 30; ++trial) {
        const std::size_t step = random() % expected.size();
        const Batch batch = jumping.batch(static_cast<std::int64_t>(step));
        for (std::size_t i = 0; i < batch.microbatches.size(); ++i) {
          wrong[t] += batch.microbatches[i].documents != expected[step].microbatches[i].documents;
        }
      }
    });
  }
  threads.clear();
  EXPECT_THAT(wrong, ::testing::Each(0));
}

INSTANTIATE_TEST_SUITE_P(Cases, RandomBalancing, ::testing::Range(0u, 40u));

TEST(Balanced, StepsBehindARememberedOneAreTheSame) {
  const MemoryCorpus corpus = numbered(long_tailed(3, 50, 40));
  const Options options{Packing::balanced, 160, 40, 1.25, 20, {30}};
  const Packer once = packer(corpus, options);
  const Packer again = packer(corpus, options);
  const auto far = once.batch(2100).microbatches;
  again.batch(3000);
  EXPECT_EQ(again.batch(2100).microbatches[1].documents, far[1].documents);
  EXPECT_EQ(again.batch(2101).microbatches[0].documents,
            once.batch(2101).microbatches[0].documents);
}

// Documents that are short beside a microbatch: fixed packing, too, leaves them whole.
TEST(Balanced, IsBetterThanFixedOnLongTails) {
  for (std::uint32_t seed = 0; seed < 10; ++seed) {
    const MemoryCorpus corpus = numbered(long_tailed(seed, 3000, 800));
    std::map<Packing, double> mean;
    for (const Packing packing : {Packing::fixed, Packing::pooled, Packing::balanced}) {
      const Packer one = packer(corpus, {packing, 8 * 2000, 2000, 1.25, 200, {500}});
      for (std::int64_t step = 2; step < 22; ++step) {
        mean[packing] += imbalance(one.batch(step), 200) / 20;
      }
    }
    EXPECT_GT(mean[Packing::fixed], 1.2);
    EXPECT_LT(mean[Packing::pooled], 1 + 0.5 * (mean[Packing::fixed] - 1));
    EXPECT_LT(mean[Packing::balanced], 1 + 0.5 * (mean[Packing::fixed] - 1));
  }
}

}  // namespace
}  // namespace cadenza::data::test_balanced
