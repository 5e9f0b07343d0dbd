// SPDX-License-Identifier: Apache-2.0
// Masks against their definition, pair by pair.
#include "cadenza/base/mask.hpp"

#include <gtest/gtest.h>

#include <functional>

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
            Range keys{kTokens, 0};
            Range queries{kTokens, 0};
            for (std::int64_t i = q0; i < q1; ++i) {
              for (std::int64_t j = k0; j < k1; ++j) {
                ASSERT_EQ(c.mask.sees(i, j), c.sees(i, j));
                if (!c.sees(i, j)) continue;
                ++pairs;
                keys = {std::min(keys.begin, j), std::max(keys.end, j + 1)};
                queries = {std::min(queries.begin, i), std::max(queries.end, i + 1)};
              }
            }
            ASSERT_EQ(c.mask.pairs({q0, q1}, {k0, k1}), pairs);
            ASSERT_EQ(c.mask.keys({q0, q1}, {k0, k1}), pairs > 0 ? keys : Range{});
            ASSERT_EQ(c.mask.queries({q0, q1}, {k0, k1}), pairs > 0 ? queries : Range{});
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
    EXPECT_EQ(c.mask.pairs({0, kTokens}), counted);
  }
}

TEST(MaskTest, AWindowOfAMillionTokensIsCountedAtOnce) {
  constexpr std::int64_t kTokens = 1'000'000;
  EXPECT_EQ(Mask::window(4096).pairs({0, kTokens}), 4096 * (kTokens - 4096) + 4096 * 4097 / 2);
  EXPECT_EQ(Mask::window(4096).keys({500'000, 500'001}), (Range{495'905, 500'001}));
}

}  // namespace
}  // namespace cadenza
