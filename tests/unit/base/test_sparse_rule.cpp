// SPDX-License-Identifier: Apache-2.0
// How a pattern is chosen, and that it travels unchanged.
#include "cadenza/base/sparse_pattern.hpp"

#include <gmock/gmock.h>

#include <random>

#include "cadenza/base/error.hpp"
#include "cadenza/base/sparse_density.hpp"

namespace cadenza {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const std::vector<std::uint32_t> kMasses = {5, 40, 5, 0, 30, 20};

TEST(LargestMasses, OfEqualOnesTheLowerNumber) {
  EXPECT_THAT(largest_masses(kMasses, 3, 0, 0), ElementsAre(1, 4, 5));
  EXPECT_THAT(largest_masses(kMasses, 4, 0, 0), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(largest_masses(kMasses, 0, 0, 0), IsEmpty());
}

TEST(LargestMasses, MoreThanThereAreIsAll) {
  EXPECT_THAT(largest_masses(kMasses, 100, 0, 0), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(LargestMasses, ForcedOnesArePartOfTheBudget) {
  EXPECT_THAT(largest_masses(kMasses, 3, 2, 0), ElementsAre(0, 1, 4));
  EXPECT_THAT(largest_masses(kMasses, 2, 4, 0), ElementsAre(0, 1));
}

TEST(LargestMasses, WithTopPTheOneThatReachesTheShareIsNotKept) {
  EXPECT_THAT(largest_masses(kMasses, 6, 0, 0.5), ElementsAre(1));  // 40 < 50 <= 70
  EXPECT_THAT(largest_masses(kMasses, 6, 0, 0.7), ElementsAre(1));  // 40 < 70 <= 70
  EXPECT_THAT(largest_masses(kMasses, 6, 0, 0.71), ElementsAre(1, 4));
  EXPECT_THAT(largest_masses(kMasses, 6, 0, 0.4), IsEmpty());
  EXPECT_THAT(largest_masses(kMasses, 2, 0, 1), ElementsAre(1, 4));  // the budget ends it
  EXPECT_THAT(largest_masses(kMasses, 6, 3, 0.5), ElementsAre(1));   // nothing is forced
}

TEST(LargestMasses, AreThoseOfASort) {
  std::mt19937 engine(1);
  for (int turn = 0; turn < 100; ++turn) {
    std::vector<std::uint32_t> masses(1 + engine() % 50);
    for (std::uint32_t& mass : masses) mass = engine() % 8;
    const auto most = static_cast<std::int64_t>(engine() % (masses.size() + 2));
    std::vector<std::pair<std::int64_t, std::int64_t>> order;  // mass, largest first; then number
    for (std::size_t i = 0; i < masses.size(); ++i) {
      order.emplace_back(-std::int64_t{masses[i]}, static_cast<std::int64_t>(i));
    }
    std::ranges::sort(order);
    std::vector<std::int64_t> expected;
    for (std::int64_t i = 0; i < std::min<std::int64_t>(most, std::ssize(order)); ++i) {
      expected.push_back(order[static_cast<std::size_t>(i)].second);
    }
    std::ranges::sort(expected);
    EXPECT_EQ(largest_masses(masses, most, 0, 0), expected);
  }
}

TEST(LargestBlocks, AreTheFewestThatHoldTheShare) {
  const std::vector<std::uint32_t> masses = {1, 20, 40, 20, 4, 15};  // 100; the last is its own
  EXPECT_THAT(largest_blocks(masses, 0.1), ElementsAre(0, 5));       // always kept: 16
  EXPECT_THAT(largest_blocks(masses, 0.16), ElementsAre(0, 5));
  EXPECT_THAT(largest_blocks(masses, 0.17), ElementsAre(0, 2, 5));
  EXPECT_THAT(largest_blocks(masses, 0.57), ElementsAre(0, 1, 2, 5));  // of equal ones the lower
  EXPECT_THAT(largest_blocks(masses, 1), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(largest_blocks(std::vector<std::uint32_t>{7}, 0.5), ElementsAre(0));
  EXPECT_THAT(largest_blocks(std::vector<std::uint32_t>{0, 0, 0}, 0.9), ElementsAre(0, 2));
}

TEST(SparseRule, ForcedWindowsAdjoin) {
  SparseRule rule;
  rule.block = 64;
  rule.slashes = 200;
  EXPECT_EQ(rule.adjoining(), 0);  // no window
  rule.window = 200;               // all slashes: blocks 0 to 3 below the diagonal
  EXPECT_EQ(rule.adjoining(), 1);
  rule.window = 64;  // two adjoin, the other 136 slashes cross two each
  EXPECT_DOUBLE_EQ(rule.adjoining(), 2 / (2 + 272.0));
  rule.top_p = 0.9;  // nothing is forced
  EXPECT_EQ(rule.adjoining(), 0);
  rule.top_p = 0;
  rule.kind = SparseKind::xattention;
  EXPECT_EQ(rule.adjoining(), 0);
}

TEST(SparseRule, BlocksTravelInRows) {
  std::mt19937 engine(3);
  SparseRule rule;
  rule.kind = SparseKind::xattention;
  rule.block = 4;
  rule.stride = 2;
  for (std::int64_t length = 1; length < 200; length += 1 + length / 3) {
    const std::int64_t rows = (length + 3) / 4;
    std::vector<bool> active;
    for (std::int64_t i = 0; i < rows * (rows + 1) / 2; ++i) active.push_back(engine() % 3 == 0);
    const SparsePattern pattern = SparsePattern::blocks(length, 4, active);
    SparsePattern arrived = rule.diagonal(length);
    std::int64_t begin = 0;
    while (begin < rows) {  // in parts, as owners send them
      const auto some = static_cast<std::int64_t>(1 + engine() % 5);
      const Range tokens{begin * 4, std::min(length, (begin + some) * 4)};
      std::vector<std::uint64_t> words(static_cast<std::size_t>(rule.pattern_words(length, tokens)),
                                       9);
      rule.pack(pattern, tokens, words);
      rule.unpack(words, tokens, arrived);
      begin += some;
    }
    EXPECT_EQ(arrived, pattern) << length;
  }
  SparsePattern pattern = rule.diagonal(40);
  std::vector<std::uint64_t> words(1, 0);
  EXPECT_THROW(rule.unpack(words, {0, 8}, pattern), Error);  // a row that does not see itself
  words.resize(2, ~0ULL);
  EXPECT_THROW(rule.unpack(words, {0, 8}, pattern), Error);
  EXPECT_THROW(rule.pack(pattern, {0, 8}, words), Error);
}

SparseRule small_rule() {
  SparseRule rule;
  rule.block = 4;
  rule.columns = 5;
  rule.slashes = 3;
  return rule;
}

TEST(SparseRule, AsksTheLastQueries) {
  EXPECT_EQ(SparseRule::observed(1000), (Range{936, 1000}));
  EXPECT_EQ(SparseRule::observed(10), (Range{0, 10}));
}

TEST(SparseRule, PatternsTravelUnchanged) {
  std::mt19937 engine(2);
  const SparseRule rule = small_rule();
  for (std::int64_t length = 1; length < 600; length += 1 + length / 3) {
    ObservedMass mass;
    for (std::int64_t i = 0; i < length; ++i) {
      mass.columns.push_back(engine() % 100);
      mass.slashes.push_back(engine() % 100);
    }
    const SparsePattern pattern = choose_pattern(rule, mass);
    std::vector<std::uint64_t> words(
        static_cast<std::size_t>(rule.pattern_words(length, {0, length})), 7);
    pattern.pack(words);
    EXPECT_EQ(SparsePattern::unpack(length, rule.block, words), pattern);
  }
}

TEST(SparseRule, BudgetsSayWhatIsKeptOfForcedPatterns) {
  constexpr std::int64_t kLength = 8192;
  SparseRule rule;
  rule.block = 64;
  rule.columns = rule.sinks = 128;
  for (const std::int64_t window : {1, 64, 65, 200}) {
    rule.slashes = rule.window = window;
    const std::vector<std::uint32_t> none(kLength, 0);
    SparseCounts counts;
    counts.add(0, choose_pattern(rule, {none, none}), {0, kLength});
    const SparseDensity density = SparseDensity::of_budgets(rule, kLength);
    for (std::int64_t bin = 0; bin < SparseDensity::kBins; ++bin) {
      const SparseCounts::Rows& of = counts.rows.at(SparsePlace::of(0, kLength));
      const auto at = static_cast<std::size_t>(bin);
      const double kept = static_cast<double>(of.kept[at]) / static_cast<double>(of.causal[at]);
      EXPECT_NEAR(static_cast<double>(density.share(bin)) / SparseDensity::kUnit, kept,
                  0.05 * kept + 0.001)
          << "window " << window << " bin " << bin;
    }
  }
}

TEST(SparseRule, WordsThatAreNoPatternAreRefused) {
  const std::vector<std::int64_t> columns = {3, 9}, slashes = {0};
  const SparsePattern pattern = SparsePattern::vertical_slash(40, 4, slashes, columns);
  std::vector<std::uint64_t> words(static_cast<std::size_t>(SparsePattern::packed_words(10, 2)));
  pattern.pack(words);
  const auto refused = [&](std::size_t at, std::uint64_t value) {
    std::vector<std::uint64_t> other = words;
    other[at] = value;
    EXPECT_THROW(SparsePattern::unpack(40, 4, other), Error) << at << " = " << value;
  };
  refused(0, 3);                 // more columns than words
  refused(1, 0);                 // the diagonal's blocks are always there
  refused(2, 40 | 41ULL << 32);  // columns behind the end
  refused(2, 9 | 3ULL << 32);    // that do not ascend
  EXPECT_THROW(SparsePattern::unpack(40, 4, std::span(words).first(1)), Error);
  EXPECT_THROW(pattern.pack(std::span(words).first(2)), Error);
}

}  // namespace
}  // namespace cadenza
