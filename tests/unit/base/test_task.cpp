// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/task.hpp"

#include <gtest/gtest.h>

#include <random>

namespace cadenza {
namespace {

// The definition of the masks, pair by pair.
bool sees(std::int64_t query, std::int64_t key, Rule rule) {
  return rule == Rule::full || key <= query;
}

std::int64_t count_pairs(Range q, Range k, Rule rule) {
  std::int64_t pairs = 0;
  for (std::int64_t i = q.begin; i < q.end; ++i) {
    for (std::int64_t j = k.begin; j < k.end; ++j) pairs += sees(i, j, rule) ? 1 : 0;
  }
  return pairs;
}

TEST(AllowedPairs, AreCountedForEveryRectangle) {
  constexpr std::int64_t kTokens = 9;
  for (const Rule rule : {Rule::causal, Rule::full}) {
    for (std::int64_t a = 0; a <= kTokens; ++a) {
      for (std::int64_t b = a; b <= kTokens; ++b) {
        for (std::int64_t c = 0; c <= kTokens; ++c) {
          for (std::int64_t d = c; d <= kTokens; ++d) {
            ASSERT_EQ(allowed_pairs({a, b}, {c, d}, rule), count_pairs({a, b}, {c, d}, rule))
                << "q [" << a << "," << b << ") k [" << c << "," << d << ")";
          }
        }
      }
    }
  }
}

TEST(AllowedPairs, AddUpOverSplits) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const auto cut = [&](std::int64_t low, std::int64_t high) {
      return std::uniform_int_distribution<std::int64_t>(low, high)(random);
    };
    const std::int64_t tokens = cut(2, 1'000'000);
    const std::int64_t q = cut(0, tokens);
    const std::int64_t k = cut(0, tokens);
    const std::int64_t parts = allowed_pairs({0, q}, {0, k}, Rule::causal) +
                               allowed_pairs({0, q}, {k, tokens}, Rule::causal) +
                               allowed_pairs({q, tokens}, {0, k}, Rule::causal) +
                               allowed_pairs({q, tokens}, {k, tokens}, Rule::causal);
    ASSERT_EQ(parts, tokens * (tokens + 1) / 2) << tokens << " at " << q << ", " << k;
  }
}

TEST(AllowedPairs, OfABillionTokensAreExact) {
  constexpr std::int64_t kTokens = 1'000'000'000;
  EXPECT_EQ(allowed_pairs({0, kTokens}, {0, kTokens}, Rule::causal), 500'000'000'500'000'000);
}

TEST(VisibleKeys, AreCountedForEveryQuery) {
  for (const Rule rule : {Rule::causal, Rule::full}) {
    for (std::int64_t i = 0; i < 12; ++i) {
      for (std::int64_t begin = 0; begin < 12; ++begin) {
        for (std::int64_t end = begin; end < 12; ++end) {
          ASSERT_EQ(visible_keys(i, {begin, end}, rule),
                    count_pairs({i, i + 1}, {begin, end}, rule));
        }
      }
    }
  }
}

TEST(ForwardFlops, FourPerPairHeadAndDimension) {
  const Task task{.document = 0, .q = {2, 5}, .k = {1, 4}, .heads = {0, 6}, .rule = Rule::causal};
  EXPECT_EQ(count_pairs(task.q, task.k, task.rule), 8);
  EXPECT_EQ(forward_flops(task, 16), 4.0 * 8 * 6 * 16);
}

TEST(RangeTest, IntersectOverlapContain) {
  EXPECT_EQ(intersect({0, 5}, {3, 9}), (Range{3, 5}));
  EXPECT_TRUE(intersect({0, 3}, {3, 9}).empty());
  EXPECT_FALSE((Range{0, 3}.overlaps({3, 9})));
  EXPECT_TRUE((Range{0, 4}.overlaps({3, 9})));
  EXPECT_TRUE((Range{0, 4}.contains({1, 4})));
  EXPECT_FALSE((Range{0, 4}.contains({1, 5})));
}

}  // namespace
}  // namespace cadenza
