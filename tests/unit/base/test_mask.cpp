// SPDX-License-Identifier: Apache-2.0
// Masks against their definition, pair by pair.
#include "cadenza/base/mask.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace cadenza {
namespace {

struct Case {
  Mask mask;
  std::function<bool(std::int64_t, std::int64_t)> sees;  // query, key
};

std::vector<Case> cases() {
  std::vector<Case> all = {{Mask{}, [](std::int64_t i, std::int64_t j) { return j <= i; }}};
  for (const std::int64_t keys : {1, 2, 3, 5, 100}) {
    all.push_back({Mask::window(keys),
                   [keys](std::int64_t i, std::int64_t j) { return j <= i && i - j < keys; }});
  }
  for (const std::int64_t sinks : {1, 2, 4, 50}) {
    for (const std::int64_t keys : {1, 3, 100}) {
      all.push_back({Mask::window(keys, sinks), [=](std::int64_t i, std::int64_t j) {
                       return j <= i && (i - j < keys || j < sinks);
                     }});
    }
  }
  for (const std::int64_t tokens : {1, 3, 7}) {
    all.push_back({Mask::prefix(tokens), [=](std::int64_t i, std::int64_t j) {
                     return j <= i || (i < tokens && j < tokens);
                   }});
  }
  for (const std::int64_t stride : {1, 3, 4, 20}) {
    all.push_back({Mask::dual_chunk({stride, stride + 1, stride}),
                   [](std::int64_t i, std::int64_t j) { return j <= i; }});
  }
  return all;
}

TEST(MaskTest, CountsAndFindsWhatItsRegionsAllow) {
  constexpr std::int64_t kTokens = 8;
  for (const Case& c : cases()) {
    for (std::int64_t q0 = 0; q0 < kTokens; ++q0) {
      for (std::int64_t q1 = q0; q1 <= kTokens; ++q1) {
        for (std::int64_t k0 = 0; k0 < kTokens; ++k0) {
          for (std::int64_t k1 = k0; k1 <= kTokens; ++k1) {
            std::int64_t pairs = 0;
            std::vector<char> seen(kTokens, 0);
            Range keys{kTokens, 0};
            Range queries{kTokens, 0};
            for (std::int64_t i = q0; i < q1; ++i) {
              for (std::int64_t j = k0; j < k1; ++j) {
                ASSERT_EQ(c.mask.sees(i, j), c.sees(i, j));
                if (!c.sees(i, j)) continue;
                ++pairs;
                seen[static_cast<std::size_t>(j)] = 1;
                keys = {std::min(keys.begin, j), std::max(keys.end, j + 1)};
                queries = {std::min(queries.begin, i), std::max(queries.end, i + 1)};
              }
            }
            ASSERT_EQ(c.mask.pairs({q0, q1}, {k0, k1}), pairs);
            ASSERT_EQ(c.mask.keys({q0, q1}, {k0, k1}), pairs > 0 ? keys : Range{});
            ASSERT_EQ(c.mask.queries({q0, q1}, {k0, k1}), pairs > 0 ? queries : Range{});
            ASSERT_EQ(c.mask.key_rows({q0, q1}, {k0, k1}), std::ranges::count(seen, 1));
            std::int64_t before = -1;  // parts do not touch
            c.mask.for_each_key_range({q0, q1}, {k0, k1}, [&](Range part) {
              ASSERT_GT(part.begin, before);
              ASSERT_FALSE(part.empty());
              before = part.end;
              for (std::int64_t j = part.begin; j < part.end; ++j) {
                ASSERT_TRUE(seen[static_cast<std::size_t>(j)]);
              }
            });
          }
        }
      }
    }
  }
}

TEST(MaskTest, RegionsOfADocumentCoverItsPairsOnce) {
  for (const Case& c : cases()) {
    constexpr std::int64_t kTokens = 13;
    std::int64_t counted = 0;
    for (std::int64_t i = 0; i < kTokens; ++i) {
      for (std::int64_t j = 0; j < kTokens; ++j) {
        int times = 0;
        for (const Task& region : regions(c.mask, kTokens)) {
          times += region.q.contains({i, i + 1}) && region.k.contains({j, j + 1}) &&
                   region.band.sees(i, j);
        }
        EXPECT_EQ(times, c.sees(i, j) ? 1 : 0);
        counted += times;
      }
    }
    EXPECT_EQ(c.mask.within(kTokens).pairs({0, kTokens}), counted);
  }
}

TEST(MaskTest, AllKeysOfADocumentAreThoseItHas) {
  for (const Case& c : cases()) {
    for (std::int64_t length = 1; length < 9; ++length) {
      const Mask mask = c.mask.within(length);
      for (std::int64_t q = 0; q < length; ++q) {
        std::int64_t pairs = 0;
        std::int64_t last = 0;
        for (std::int64_t j = 0; j < length; ++j) {
          pairs += c.sees(q, j);
          if (c.sees(q, j)) last = j + 1;
        }
        EXPECT_EQ(mask.pairs({q, q + 1}), pairs);
        EXPECT_EQ(mask.keys({q, q + 1}).end, last);
      }
    }
  }
}

/// Position of each query less that of each key that it sees; -1: it does not.
std::vector<std::vector<std::int64_t>> distances(const Mask& mask, std::int64_t length) {
  const auto size = static_cast<std::size_t>(length);
  std::vector<std::vector<std::int64_t>> all(size, std::vector<std::int64_t>(size, -1));
  for (const Task& task : regions(mask, length)) {
    for (std::int64_t i = task.q.begin; i < task.q.end; ++i) {
      for (std::int64_t j = task.k.begin; j < task.k.end; ++j) {
        if (!task.band.sees(i, j)) continue;
        all[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)] =
            task.q_positions.of(i) - mask.key_position(j);
      }
    }
  }
  return all;
}

// arXiv 2402.17463, figure 2: chunks of 6 tokens, 4 of them local, 10 positions; and what
// Megatron-LM makes of the same numbers.
TEST(DualChunkTest, PositionsAreThoseOfThePaperAndOfMegatron) {
  const std::vector<std::vector<std::int64_t>> paper = {
      {9, 8, 7, 6, 5, 4, 6, 5, 4, 3, 2, 1, 0},
      {9, 8, 7, 6, 5, 4, 7, 6, 5, 4, 3, 2, 1, 0},
      {9, 8, 7, 6, 5, 4, 8, 7, 6, 5, 4, 3, 2, 1, 0},
      {9, 8, 7, 6, 5, 4, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0},
      {9, 8, 7, 6, 5, 4, 9, 8, 7, 6, 5, 4, 4, 3, 2, 1, 0},
      {9, 8, 7, 6, 5, 4, 9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0}};
  const auto of_paper = distances(Mask::dual_chunk({6, 9, 9}), 18);
  for (std::size_t i = 0; i < 10; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      EXPECT_EQ(of_paper[i][j], static_cast<std::int64_t>(i - j)) << "as if there were no chunks";
    }
  }
  EXPECT_EQ(of_paper[10][0], 9);
  EXPECT_EQ(of_paper[11][5], 4);
  const auto of_megatron = distances(Mask::dual_chunk({6, 10, 10}), 18);
  for (std::size_t row = 0; row < paper.size(); ++row) {
    for (std::size_t j = 0; j < paper[row].size(); ++j) {
      EXPECT_EQ(of_paper[12 + row][j], paper[row][j]) << row << ", " << j;
      // One further where the cap decides: older chunks, and from the fifth query on the last one.
      const bool capped = j < 6 || (j < 12 && row >= 4);
      EXPECT_EQ(of_megatron[12 + row][j], paper[row][j] + (capped ? 1 : 0)) << row << ", " << j;
    }
  }
}

TEST(DualChunkTest, DistancesAreNeverNegativeAndFitIntoTheTable) {
  for (std::int64_t stride = 1; stride < 8; ++stride) {
    for (std::int64_t local = 0; local < 9; ++local) {
      for (const bool is_paper : {false, true}) {
        const std::int64_t cap = stride + local - (is_paper ? 1 : 0);
        const Mask mask =
            Mask::dual_chunk({stride, cap, is_paper ? cap : std::min(2 * stride - 1, cap)});
        for (std::int64_t length = 1; length < 30; ++length) {
          const auto found = distances(mask, length);
          for (std::size_t i = 0; i < found.size(); ++i) {
            for (std::size_t j = 0; j <= i; ++j) {
              EXPECT_GE(found[i][j], 0);
              EXPECT_LT(found[i][j] + mask.key_position(static_cast<std::int64_t>(j)),
                        mask.positions(length));
              if (length <= std::min(cap + 1, 2 * stride)) {
                EXPECT_EQ(found[i][j], static_cast<std::int64_t>(i - j)) << "plain rotation";
              }
            }
          }
        }
      }
    }
  }
}

TEST(MaskTest, AWindowOfAMillionTokensIsCountedAtOnce) {
  constexpr std::int64_t kTokens = 1'000'000;
  EXPECT_EQ(Mask::window(4096).pairs({0, kTokens}), 4096 * (kTokens - 4096) + 4096 * 4097 / 2);
  EXPECT_EQ(Mask::window(4096).keys({500'000, 500'001}), (Range{495'905, 500'001}));
}

}  // namespace
}  // namespace cadenza
