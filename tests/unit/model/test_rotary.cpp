// SPDX-License-Identifier: Apache-2.0
// Scaled rotary frequencies against numbers of other implementations and their limits.
#include "cadenza/model/layers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace cadenza::model {
namespace {

using config::Rope;
using config::RopeScalingKind;

Rope scaled(RopeScalingKind kind, double theta, double factor, std::int64_t original_context) {
  Rope rope;
  rope.theta = theta;
  rope.scaling.kind = kind;
  rope.scaling.factor = factor;
  rope.scaling.original_context = original_context;
  return rope;
}

TEST(Rotary, WithoutScalingAFrequencyIsAPowerOfTheta) {
  const auto all = rotary_frequencies(Rope{}, 6);
  ASSERT_EQ(all.of_pair.size(), 3u);
  EXPECT_EQ(all.of_pair[0], 1.0);
  EXPECT_NEAR(all.of_pair[1], 0.0464158883361278, 1e-16);  // 10000^(-1/3)
  EXPECT_EQ(all.magnitude, 1.0);
  EXPECT_TRUE(rotary_frequencies(Rope{}, 1).of_pair.empty());
}

TEST(Rotary, LinearScalingStretchesPositions) {
  const auto plain = rotary_frequencies(Rope{}, 64).of_pair;
  const auto all = rotary_frequencies(scaled(RopeScalingKind::linear, 10000, 4, 0), 64);
  for (std::size_t d = 0; d < plain.size(); ++d) {
    EXPECT_DOUBLE_EQ(4 * all.of_pair[d], plain[d]);
  }
  EXPECT_EQ(all.magnitude, 1.0);
}

/// How many pairs stay, are ramped, are divided by the factor.
struct Pairs {
  int kept = 0, ramped = 0, divided = 0;
  friend bool operator==(const Pairs&, const Pairs&) = default;
};

/// A Llama of theta 500000, trained on 8192 tokens: a pair of wavelength up to 8192 / 4 stays, one
/// of 8192 and more is divided by the factor.
Pairs llama3_pairs(double factor, int head_dim) {
  const Rope rope = scaled(RopeScalingKind::llama3, 500000, factor, 8192);
  const Rope none = scaled(RopeScalingKind::none, 500000, 1, 0);
  const auto plain = rotary_frequencies(none, head_dim).of_pair;
  const auto all = rotary_frequencies(rope, head_dim).of_pair;
  Pairs pairs;
  for (std::size_t d = 0; d < plain.size(); ++d) {
    const double wavelength = 2 * M_PI / plain[d];
    if (wavelength < 2048) {
      EXPECT_DOUBLE_EQ(all[d], plain[d]);
      ++pairs.kept;
    } else if (wavelength > 8192) {
      EXPECT_DOUBLE_EQ(factor * all[d], plain[d]);
      ++pairs.divided;
    } else {
      const double smooth = (8192 / wavelength - 1) / 3;
      EXPECT_NEAR(all[d], (1 - smooth) * plain[d] / factor + smooth * plain[d], 1e-15);
      ++pairs.ramped;
    }
    if (d > 0) {
      EXPECT_LT(all[d], all[d - 1]);
    }
  }
  return pairs;
}

TEST(Rotary, Llama3KeepsFastPairsAndDividesSlowOnes) {
  EXPECT_EQ(llama3_pairs(8, 128), (Pairs{29, 6, 29})) << "Llama 3.1";
  EXPECT_EQ(llama3_pairs(32, 64), (Pairs{15, 3, 14})) << "Llama 3.2 1B";
  EXPECT_EQ(llama3_pairs(32, 128), (Pairs{29, 6, 29})) << "Llama 3.2 3B";
}

// Theta 10000, heads of 128, 4096 tokens: pairs up to 20 turn more than 32 times, pairs from 46 on
// less than once (arXiv 2309.00071, section 3.2).
TEST(Rotary, YarnRampsOverPairs) {
  const Rope rope = scaled(RopeScalingKind::yarn, 10000, 16, 4096);
  const auto plain = rotary_frequencies(Rope{}, 128).of_pair;
  const auto all = rotary_frequencies(rope, 128);
  for (std::size_t d = 0; d < 64; ++d) {
    const double share = std::clamp((static_cast<double>(d) - 20) / (46 - 20), 0.0, 1.0);
    EXPECT_NEAR(all.of_pair[d], plain[d] * (share / 16 + 1 - share), 1e-15) << d;
  }
  EXPECT_NEAR(all.magnitude, 0.1 * std::log(16.0) + 1, 1e-15);
}

// GPT-OSS: theta 150000, heads of 64, factor 32 of 4096 tokens, a ramp that is not rounded. Its
// corners are where the line through two shares on it is 0 and 1.
TEST(Rotary, YarnsRampOfGptOssBeginsAndEndsBetweenPairs) {
  Rope rope = scaled(RopeScalingKind::yarn, 150000, 32, 4096);
  const auto plain = rotary_frequencies(scaled(RopeScalingKind::none, 150000, 1, 0), 64).of_pair;
  const auto corners = [&] {
    const auto all = rotary_frequencies(rope, 64).of_pair;
    const auto share = [&](std::size_t d) { return (1 - all[d] / plain[d]) / (1 - 1.0 / 32); };
    EXPECT_NEAR(share(8), 0, 1e-15);
    EXPECT_NEAR(share(18), 1, 1e-15);
    const double slope = (share(17) - share(9)) / 8;
    return std::pair(9 - share(9) / slope, 17 + (1 - share(17)) / slope);
  };
  EXPECT_NEAR(corners().first, 8, 1e-12);
  EXPECT_NEAR(corners().second, 18, 1e-12);
  rope.scaling.truncate = false;
  EXPECT_NEAR(corners().first, 8.0928, 5e-5);
  EXPECT_NEAR(corners().second, 17.3980, 5e-5);
  EXPECT_NEAR(rotary_frequencies(rope, 64).magnitude, 1.3465735902799727, 1e-15);
}

// Shares of f / factor that Hugging Face's _compute_yarn_parameters gives heads of 16, by pair.
TEST(Rotary, YarnsCornersAreThoseOfHuggingFace) {
  struct Corner {
    double theta;
    std::int64_t original_context;
    std::vector<double> shares;
  };
  const double third = 1.0 / 3;
  const std::vector<Corner> corners = {
      {1e4, 1, {0, 0, 0, 0, 0, 0, 0, 0}},  // even the last pair of the ramp lies before pair 0
      {1e4, 6, {0, 1, 1, 1, 1, 1, 1, 1}},  // a ramp from pair 0 to pair 0
      {1e4, 7, {0, 1, 1, 1, 1, 1, 1, 1}},
      {1e4, 64, {0, third, 2 * third, 1, 1, 1, 1, 1}},
      {1e4, 4096, {0, 0, 0, 0.25, 0.5, 0.75, 1, 1}},
      {1.5, std::int64_t{1} << 40, {1, 1, 1, 1, 1, 1, 1, 1}},  // all turn often: a ramp backwards
  };
  for (const Corner& corner : corners) {
    const Rope rope = scaled(RopeScalingKind::yarn, corner.theta, 4, corner.original_context);
    const Rope none = scaled(RopeScalingKind::none, corner.theta, 1, 0);
    const auto plain = rotary_frequencies(none, 16).of_pair;
    const auto all = rotary_frequencies(rope, 16).of_pair;
    for (std::size_t d = 0; d < 8; ++d) {
      const double share = corner.shares[d];
      EXPECT_NEAR(all[d], plain[d] * (share / 4 + 1 - share), 1e-15)
          << corner.original_context << " " << d;
    }
  }
}

/// Whatever the experiment's ranges admit.
TEST(Rotary, YarnsFrequenciesAreFinite) {
  for (const double theta : {1 + 1e-15, 1.5, 1e4, 1e308}) {
    for (const std::int64_t context :
         {std::int64_t{1}, std::int64_t{4096}, std::int64_t{1} << 40}) {
      for (const auto& [slow, fast] :
           {std::pair(1e-6, 2e-6), {1.0, 32.0}, {1e-6, 1e6}, {9e5, 1e6}}) {
        for (const double mscale : {0.0, 1e-300, 1e6}) {
          Rope rope = scaled(RopeScalingKind::yarn, theta, 1e6, context);
          rope.scaling.truncate = mscale > 0;
          rope.scaling.beta_slow = slow;
          rope.scaling.beta_fast = fast;
          rope.scaling.mscale = rope.scaling.mscale_all_dim = mscale;
          const auto all = rotary_frequencies(rope, 128);
          EXPECT_TRUE(std::isfinite(all.magnitude)) << mscale;
          EXPECT_TRUE(std::ranges::all_of(all.of_pair, [](double f) { return f >= 0 && f <= 1; }))
              << theta << " " << context << " " << slow << " " << fast;
        }
      }
    }
  }
}

TEST(Rotary, YarnsMscaleIsAQuotient) {
  Rope rope = scaled(RopeScalingKind::yarn, 10000, 40, 4096);
  rope.scaling.mscale = 0.707;
  rope.scaling.mscale_all_dim = 0.707;
  EXPECT_EQ(rotary_frequencies(rope, 64).magnitude, 1.0) << "as DeepSeek-V2 sets them";
  rope.scaling.mscale = 1;
  EXPECT_NEAR(rotary_frequencies(rope, 64).magnitude,
              (0.1 * std::log(40.0) + 1) / (0.0707 * std::log(40.0) + 1), 1e-15);
  rope.scaling.factor = 1;
  EXPECT_EQ(rotary_frequencies(rope, 64).magnitude, 1.0);
}

TEST(Rotary, YarnsAttentionFactorOverrides) {
  Rope rope = scaled(RopeScalingKind::yarn, 10000, 40, 4096);
  const auto before = rotary_frequencies(rope, 64).of_pair;
  rope.scaling.attention_factor = 1.25;
  EXPECT_EQ(rotary_frequencies(rope, 64).magnitude, 1.25);
  rope.scaling.mscale = 1;
  rope.scaling.mscale_all_dim = 0.5;
  EXPECT_EQ(rotary_frequencies(rope, 64).magnitude, 1.25);
  EXPECT_EQ(rotary_frequencies(rope, 64).of_pair, before);
  rope.scaling.kind = RopeScalingKind::linear;
  EXPECT_EQ(rotary_frequencies(rope, 64).magnitude, 1.0);
}

}  // namespace
}  // namespace cadenza::model
