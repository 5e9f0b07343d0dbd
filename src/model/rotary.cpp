// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/rotary.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace cadenza::model {
namespace {

using config::RopeScaling;
using config::RopeScalingKind;

/// How often a pair of frequency f turns within the tokens of training.
double turns(const RopeScaling& s, double f) {
  return static_cast<double>(s.original_context) * f / (2 * std::numbers::pi);
}

/// The pair, not rounded, that turns so many times within the tokens of training.
double pair_of(const config::Rope& rope, int head_dim, double turns) {
  const double tokens_per_turn = static_cast<double>(rope.scaling.original_context) / turns;
  return head_dim * std::log(tokens_per_turn / (2 * std::numbers::pi)) / (2 * std::log(rope.theta));
}

/// The share of interpolation (f / factor) of pair d: 0 below the pair of beta_fast, 1 above that
/// of beta_slow.
double yarn_ramp(const config::Rope& rope, int head_dim, double d) {
  const double low = std::max(0.0, std::floor(pair_of(rope, head_dim, rope.scaling.beta_fast)));
  double high =
      std::min(head_dim - 1.0, std::ceil(pair_of(rope, head_dim, rope.scaling.beta_slow)));
  if (low == high) high += 0.001;
  return std::clamp((d - low) / (high - low), 0.0, 1.0);
}

/// The share of f itself: 0 below low_frequency turns, 1 above high_frequency.
double llama3_share(const RopeScaling& s, double f) {
  return std::clamp((turns(s, f) - s.low_frequency) / (s.high_frequency - s.low_frequency), 0.0,
                    1.0);
}

double scaled(const config::Rope& rope, int head_dim, int d, double f) {
  const RopeScaling& s = rope.scaling;
  double interpolated = 0;  // share of f / factor
  switch (s.kind) {
    case RopeScalingKind::none:
      return f;
    case RopeScalingKind::linear:
      return f / s.factor;
    case RopeScalingKind::yarn:
      interpolated = yarn_ramp(rope, head_dim, d);
      break;
    case RopeScalingKind::llama3:
      interpolated = 1 - llama3_share(s, f);
      break;
  }
  return interpolated * (f / s.factor) + (1 - interpolated) * f;
}

double mscale(double factor, double weight) {
  return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1;
}

/// Of Q and of K, so that scores grow by its square. As in Megatron-LM.
double concentration(const RopeScaling& s) {
  if (s.kind != RopeScalingKind::yarn) return 1;
  if (s.mscale == 0) return mscale(s.factor, 1);
  return mscale(s.factor, s.mscale) / mscale(s.factor, s.mscale_all_dim);
}

}  // namespace

attention::RotaryFrequencies rotary_frequencies(const config::Rope& rope, int head_dim) {
  attention::RotaryFrequencies all;
  for (int d = 0; d < head_dim / 2; ++d) {
    const double f = std::pow(rope.theta, -2.0 * d / head_dim);
    all.of_pair.push_back(scaled(rope, head_dim, d, f));
  }
  all.magnitude = concentration(rope.scaling);
  return all;
}

}  // namespace cadenza::model
