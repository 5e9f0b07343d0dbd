// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/task.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace cadenza {
namespace {

// The definition of the bands, pair by pair.
bool sees(std::int64_t query, std::int64_t key, Band band) {
  return key - query >= band.low && key - query <= band.high;
}

std::int64_t count_pairs(Range q, Range k, Band band) {
  std::int64_t pairs = 0;
  for (std::int64_t i = q.begin; i < q.end; ++i) {
    for (std::int64_t j = k.begin; j < k.end; ++j) pairs += sees(i, j, band) ? 1 : 0;
  }
  return pairs;
}

std::vector<Band> bands() {
  std::vector<Band> all = {Band::full()};
  for (std::int64_t high = -6; high <= 6; ++high) {
    all.push_back(Band::causal(high));
    for (std::int64_t low = -8; low <= high; ++low) all.push_back({low, high});
  }
  return all;
}

template <typename Visit>
void for_each_rectangle(std::int64_t tokens, Visit&& visit) {
  for (std::int64_t a = 0; a <= tokens; ++a) {
    for (std::int64_t b = a; b <= tokens; ++b) {
      for (std::int64_t c = 0; c <= tokens; ++c) {
        for (std::int64_t d = c; d <= tokens; ++d) visit(Range{a, b}, Range{c, d});
      }
    }
  }
}

TEST(AllowedPairs, AreCountedForEveryRectangle) {
  for (const Band band : bands()) {
    for_each_rectangle(7, [&](Range q, Range k) {
      ASSERT_EQ(allowed_pairs(q, k, band), count_pairs(q, k, band))
          << "q [" << q.begin << "," << q.end << ") k [" << k.begin << "," << k.end << ") band "
          << band.low << " " << band.high;
    });
  }
}

// What is left has the same pairs, and its first and last row and column are not empty.
TEST(Trimmed, KeepsAllPairsAndNoEmptyEdge) {
  for (const Band band : bands()) {
    for_each_rectangle(6, [&](Range q, Range k) {
      const Task task = trimmed({0, q, k, {0, 1}, band});
      const std::int64_t pairs = count_pairs(q, k, band);
      if (task.q.empty() || task.k.empty()) {
        ASSERT_EQ(pairs, 0);
        return;
      }
      ASSERT_EQ(count_pairs(task.q, task.k, band), pairs);
      for (const std::int64_t i : {task.q.begin, task.q.end - 1}) {
        ASSERT_GT(count_pairs({i, i + 1}, task.k, band), 0);
      }
      for (const std::int64_t j : {task.k.begin, task.k.end - 1}) {
        ASSERT_GT(count_pairs(task.q, {j, j + 1}, band), 0);
      }
    });
  }
}

TEST(BandTest, ShiftsWithItsKeysAndKeepsWhatIsOpen) {
  EXPECT_EQ(Band::window(4).shifted(10), (Band{7, 10}));
  EXPECT_EQ(Band::causal().shifted(-3), Band::causal(-3));
  EXPECT_EQ(Band::full().shifted(5), Band::full());
  EXPECT_EQ(common(Band::window(4), Band::causal(-2)), (Band{-3, -2}));
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
    const std::int64_t parts = allowed_pairs({0, q}, {0, k}, Band::causal()) +
                               allowed_pairs({0, q}, {k, tokens}, Band::causal()) +
                               allowed_pairs({q, tokens}, {0, k}, Band::causal()) +
                               allowed_pairs({q, tokens}, {k, tokens}, Band::causal());
    ASSERT_EQ(parts, tokens * (tokens + 1) / 2) << tokens << " at " << q << ", " << k;
  }
}

TEST(AllowedPairs, OfABillionTokensAreExact) {
  constexpr std::int64_t kTokens = 1'000'000'000;
  EXPECT_EQ(allowed_pairs({0, kTokens}, {0, kTokens}, Band::window(kTokens / 2)),
            375'000'000'250'000'000);
  EXPECT_EQ(allowed_pairs({0, kTokens}, {0, kTokens}, Band::causal()), 500'000'000'500'000'000);
}

TEST(VisibleKeys, AreCountedForEveryQuery) {
  for (const Band band : bands()) {
    for (std::int64_t i = 0; i < 12; ++i) {
      for (std::int64_t begin = 0; begin < 12; ++begin) {
        for (std::int64_t end = begin; end < 12; ++end) {
          ASSERT_EQ(visible_keys(i, {begin, end}, band),
                    count_pairs({i, i + 1}, {begin, end}, band));
        }
      }
    }
  }
}

TEST(ForwardFlops, FourPerPairHeadAndDimension) {
  const Task task{.document = 0, .q = {2, 5}, .k = {1, 4}, .heads = {0, 6}, .band = Band::causal()};
  EXPECT_EQ(count_pairs(task.q, task.k, task.band), 8);
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
