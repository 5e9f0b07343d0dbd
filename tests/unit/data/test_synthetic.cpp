// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <map>

#include "support.hpp"

namespace cadenza::data::test_synthetic {
namespace {

using config::Distribution;
using ::testing::ElementsAre;

config::Data synthetic(Distribution distribution, std::int64_t count) {
  config::Data data;
  data.source = config::Source::synthetic;
  data.documents = count;
  data.max_document = 16384;
  data.lengths.distribution = distribution;
  return data;
}

std::vector<std::int64_t> lengths(const config::Data& data, std::uint64_t seed = 1) {
  const auto corpus = open_corpus(data, 50, seed);
  return {corpus->lengths().begin(), corpus->lengths().end()};
}

double quantile(std::vector<std::int64_t> values, double q) {
  std::ranges::sort(values);
  const double place = q * static_cast<double>(values.size());
  return static_cast<double>(values[static_cast<std::size_t>(place)]);
}

TEST(SyntheticLengths, Named) {
  config::Data data = synthetic(Distribution::constant, 3);
  data.lengths.median = 77;
  EXPECT_THAT(lengths(data), ElementsAre(77, 77, 77));
  data = synthetic(Distribution::list, 5);
  data.lengths.values = {5, 1, 300};
  EXPECT_THAT(lengths(data), ElementsAre(5, 1, 300, 5, 1));
  data.max_document = 200;
  EXPECT_THAT(lengths(data), ElementsAre(5, 1, 200, 100, 5, 1));
}

TEST(SyntheticLengths, Uniform) {
  config::Data data = synthetic(Distribution::uniform, 20000);
  data.lengths.min = 3;
  data.lengths.max = 12;
  std::map<std::int64_t, int> counts;
  for (const std::int64_t length : lengths(data)) ++counts[length];
  ASSERT_EQ(counts.size(), 10u);
  EXPECT_EQ(counts.begin()->first, 3);
  EXPECT_EQ(counts.rbegin()->first, 12);
  for (const auto& [length, count] : counts) EXPECT_NEAR(count, 2000, 200) << length;
}

TEST(SyntheticLengths, LognormalHasItsMedianAndSpread) {
  config::Data data = synthetic(Distribution::lognormal, 20000);
  data.lengths.median = 500;
  data.lengths.sigma = 0.8;
  const auto found = lengths(data);
  EXPECT_NEAR(quantile(found, 0.5), 500, 15);
  EXPECT_NEAR(std::log(quantile(found, 0.8413) / 500), 0.8, 0.04);
  EXPECT_NEAR(std::log(quantile(found, 0.1587) / 500), -0.8, 0.04);
}

TEST(SyntheticLengths, ParetoHasItsTail) {
  config::Data data = synthetic(Distribution::pareto, 20000);
  data.lengths.min = 100;
  data.lengths.alpha = 1.5;
  data.max_document = 1 << 20;
  const auto found = lengths(data);
  EXPECT_EQ(std::ranges::min(found), 100);
  // P(length > x) = (min / x)^alpha
  EXPECT_NEAR(quantile(found, 0.5), 100 * std::pow(0.5, -1 / 1.5), 4);
  EXPECT_NEAR(quantile(found, 0.9), 100 * std::pow(0.1, -1 / 1.5), 25);
}

TEST(SyntheticLengths, DrawnOnesAreClamped) {
  for (const auto distribution : {Distribution::lognormal, Distribution::pareto}) {
    config::Data data = synthetic(distribution, 3000);
    data.lengths.min = 20;
    data.lengths.median = 50;
    data.lengths.sigma = 3;
    data.lengths.alpha = 0.1;
    data.lengths.max = 90;
    auto found = lengths(data);
    EXPECT_EQ(found.size(), 3000u);
    EXPECT_EQ(std::ranges::min(found), 20);
    EXPECT_EQ(std::ranges::max(found), 90);
    data.lengths.max = 0;
    data.max_document = 70;
    found = lengths(data);
    EXPECT_EQ(found.size(), 3000u);
    EXPECT_EQ(std::ranges::max(found), 70);
  }
}

TEST(SyntheticLengths, DependOnTheSeed) {
  const config::Data data = synthetic(Distribution::lognormal, 50);
  EXPECT_EQ(lengths(data, 7), lengths(data, 7));
  EXPECT_NE(lengths(data, 7), lengths(data, 8));
}

TEST(SyntheticLengths, Errors) {
  expect_error(ExitCode::data, {"data.documents", "found 0"},
               [] { lengths(synthetic(Distribution::constant, 0)); });
  expect_error(ExitCode::data, {"data.lengths.values"},
               [] { lengths(synthetic(Distribution::list, 2)); });
}

class SyntheticTokens : public ::testing::Test {
 protected:
  static constexpr std::int64_t kVocabulary = 40;
  static config::Data data() {
    config::Data data = synthetic(Distribution::constant, 3);
    data.lengths.median = 20000;
    data.max_document = 0;
    return data;
  }
};

TEST_F(SyntheticTokens, AreReproducibleAndInTheVocabulary) {
  const auto first = documents(*open_corpus(data(), kVocabulary, 1));
  EXPECT_EQ(first, documents(*open_corpus(data(), kVocabulary, 1)));
  EXPECT_NE(first, documents(*open_corpus(data(), kVocabulary, 2)));
  EXPECT_NE(first[0], first[1]);
  for (const auto& tokens : first) {
    EXPECT_EQ(std::ranges::min(tokens), 0);
    EXPECT_EQ(std::ranges::max(tokens), kVocabulary - 1);
  }
}

TEST_F(SyntheticTokens, AnyRangeIsPartOfTheDocument) {
  const auto corpus = open_corpus(data(), kVocabulary, 1);
  const auto all = document(*corpus, 1);
  for (std::int64_t begin = 0; begin < 300; ++begin) {
    std::vector<Token> part(static_cast<std::size_t>(begin % 70));
    corpus->read(1, {begin, begin + std::ssize(part)}, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + begin)) << begin;
  }
}

TEST_F(SyntheticTokens, CuttingKeepsThem) {
  const auto whole = document(*open_corpus(data(), kVocabulary, 1), 0);
  config::Data cut = data();
  cut.max_document = 7001;
  const auto parts = documents(*open_corpus(cut, kVocabulary, 1));
  ASSERT_EQ(parts.size(), 9u);
  EXPECT_TRUE(std::equal(parts[1].begin(), parts[1].end(), whole.begin() + 7001));
}

// What makes them learnable: one follower of a token is as frequent as documented, in every
// document alike.
TEST_F(SyntheticTokens, HaveOneLikelyFollower) {
  const auto all = documents(*open_corpus(data(), kVocabulary, 1));
  std::vector<Token> likely;
  for (const auto& tokens : all) {
    std::map<Token, std::map<Token, int>> followers;
    for (std::size_t i = 1; i < tokens.size(); ++i) ++followers[tokens[i - 1]][tokens[i]];
    int hits = 0;
    std::vector<Token> best(kVocabulary, -1);
    for (const auto& [token, counts] : followers) {
      const auto top = std::ranges::max_element(counts, {}, [](const auto& c) { return c.second; });
      best[static_cast<std::size_t>(token)] = top->first;
      hits += top->second;
    }
    const double expected = (0.7 + 0.3 / kVocabulary) * 63 / 64 + 1.0 / kVocabulary / 64;
    EXPECT_NEAR(hits / static_cast<double>(tokens.size() - 1), expected, 0.015);
    if (likely.empty()) likely = best;
    EXPECT_EQ(best, likely);
  }
}

}  // namespace
}  // namespace cadenza::data::test_synthetic
