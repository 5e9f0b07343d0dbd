// SPDX-License-Identifier: Apache-2.0
// Scaled rotary frequencies against numbers of other implementations and their limits.
#include "cadenza/model/rotary.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

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

// Llama 3.1: theta 500000, factor 8 of 8192 tokens, heads of 128. A pair of wavelength up to
// 8192 / 4 stays, one of 8192 and more is divided by 8.
TEST(Rotary, Llama3KeepsFastPairsAndDividesSlowOnes) {
  const Rope rope = scaled(RopeScalingKind::llama3, 500000, 8, 8192);
  const auto plain = rotary_frequencies(scaled(RopeScalingKind::none, 500000, 1, 0), 128).of_pair;
  const auto all = rotary_frequencies(rope, 128).of_pair;
  int kept = 0, divided = 0;
  for (std::size_t d = 0; d < plain.size(); ++d) {
    const double wavelength = 2 * M_PI / plain[d];
    if (wavelength < 2048) {
      EXPECT_DOUBLE_EQ(all[d], plain[d]);
      ++kept;
    } else if (wavelength > 8192) {
      EXPECT_DOUBLE_EQ(8 * all[d], plain[d]);
      ++divided;
    } else {
      const double smooth = (8192 / wavelength - 1) / 3;
      EXPECT_NEAR(all[d], (1 - smooth) * plain[d] / 8 + smooth * plain[d], 1e-15);
    }
    if (d > 0) {
      EXPECT_LT(all[d], all[d - 1]);
    }
  }
  EXPECT_EQ(kept, 29);
  EXPECT_EQ(divided, 29);
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

}  // namespace
}  // namespace cadenza::model
