// SPDX-License-Identifier: Apache-2.0
// The feed-forward gate against its definition and central differences.
#include "cadenza/model/layers.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "unit/model/support.hpp"

namespace cadenza::model {
namespace {

using test::derivative;
using test::download_double;
using test::kRounding;
using test::normal;
using test::upload_as;
using test::Vector;

double reference_swiglu(double gate, double up) {
  return gate / (1 + std::exp(-gate)) * up;
}

/// Rows of gate and up, one after the other.
Vector beside(const Vector& gate, const Vector& up, std::size_t width) {
  Vector both;
  for (std::size_t at = 0; at < gate.size(); at += width) {
    both.insert(both.end(), &gate[at], &gate[at] + width);
    both.insert(both.end(), &up[at], &up[at] + width);
  }
  return both;
}

/// @param rows  that the elements are taken as
template <typename Real>
Vector run_swiglu(const Vector& gate, const Vector& up, std::size_t rows = 1) {
  const std::size_t width = gate.size() / rows;
  const auto gate_up = upload_as<Real>(beside(gate, up, width));
  Array<Real> out("out", gate.size());
  swiglu(static_cast<const Real*>(gate_up.data()), static_cast<std::int64_t>(rows),
         static_cast<std::int64_t>(width), out.data());
  fence();
  return download_double(out);
}

struct SwigluGradient {
  Vector gate, up, out;
};

template <typename Real>
SwigluGradient run_swiglu_gradient(const Vector& dout, const Vector& gate, const Vector& up,
                                   std::size_t rows = 1) {
  const std::size_t width = gate.size() / rows;
  const auto hidden = upload_as<Real>(dout), gate_up = upload_as<Real>(beside(gate, up, width));
  swiglu_gradient(gate_up.data(), static_cast<std::int64_t>(rows), static_cast<std::int64_t>(width),
                  hidden.data());
  fence();
  const Vector both = download_double(gate_up);
  SwigluGradient gradient{{}, {}, download_double(hidden)};
  for (std::size_t at = 0; at < both.size(); at += 2 * width) {
    gradient.gate.insert(gradient.gate.end(), &both[at], &both[at] + width);
    gradient.up.insert(gradient.up.end(), &both[at] + width, &both[at] + 2 * width);
  }
  return gradient;
}

template <typename Real>
void expect_swiglu_by_definition() {
  std::mt19937_64 random(5);
  for (const std::int64_t count : {1, 3, 64, 1001}) {
    const Vector gate = test::rounded_to<Real>(normal(count, random, 4)),
                 up = test::rounded_to<Real>(normal(count, random));
    const Vector got = run_swiglu<Real>(gate, up, count % 7 == 0 ? 7 : 1);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double expected = reference_swiglu(gate[i], up[i]);
      // exp is good to two units; the rest are four roundings, and one to Real.
      const double relative = 8 * kRounding<Accumulator<Real>> + kRounding<Real>;
      EXPECT_NEAR(got[i], expected, relative * std::abs(expected));
    }
  }
}

TEST(Swiglu, FollowsItsDefinition) {
  expect_swiglu_by_definition<double>();
  expect_swiglu_by_definition<float>();
  expect_swiglu_by_definition<bfloat16>();
}

/// Every part of the exponential's range, many lanes at a time.
TEST(Swiglu, FollowsItsDefinitionOverTheWholeRange) {
  Vector gate, up;
  for (int i = -87000; i <= 87000; i += 7) {
    gate.push_back(static_cast<float>(i * 1e-3));
    up.push_back(1);
  }
  const Vector got = run_swiglu<float>(gate, up);
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double expected = reference_swiglu(gate[i], 1);
    ASSERT_NEAR(got[i], expected, 6 * kRounding<float> * std::abs(expected)) << gate[i];
  }
}

TEST(Swiglu, GradientsAreCentralDifferences) {
  std::mt19937_64 random(6);
  for (const std::int64_t count : {1, 3, 64, 257}) {
    Vector gate = normal(count, random, 2), up = normal(count, random);
    const Vector dout = normal(count, random);
    const SwigluGradient got = run_swiglu_gradient<double>(dout, gate, up, count % 4 == 0 ? 4 : 1);
    for (std::size_t i = 0; i < gate.size(); ++i) {
      const auto f = [&] { return dout[i] * reference_swiglu(gate[i], up[i]); };
      EXPECT_NEAR(got.out[i], reference_swiglu(gate[i], up[i]), 1e-14);
      EXPECT_NEAR(got.gate[i], derivative(f, gate[i]), 1e-9);
      EXPECT_NEAR(got.up[i], derivative(f, up[i]), 1e-9);
    }
  }
}

template <typename Real>
void expect_swiglu_gradients_follow_double() {
  std::mt19937_64 random(7);
  const Vector gate = test::rounded_to<Real>(normal(1001, random, 4)),
               up = test::rounded_to<Real>(normal(1001, random)),
               dout = test::rounded_to<Real>(normal(1001, random));
  const SwigluGradient exact = run_swiglu_gradient<double>(dout, gate, up);
  const SwigluGradient got = run_swiglu_gradient<Real>(dout, gate, up, 13);
  constexpr double u = kRounding<Accumulator<Real>>, stored = kRounding<Real>;
  for (std::size_t i = 0; i < gate.size(); ++i) {
    EXPECT_NEAR(got.out[i], exact.out[i], (8 * u + stored) * std::abs(exact.out[i]));
    EXPECT_NEAR(got.up[i], exact.up[i], (8 * u + stored) * std::abs(exact.up[i]));
    // sigmoid + silu (1 - sigmoid): the two may cancel, and 1 - sigmoid loses up to u itself.
    const double terms = std::abs(dout[i] * up[i]) * (1 + 2 * std::abs(gate[i]));
    EXPECT_NEAR(got.gate[i], exact.gate[i], 8 * u * terms + stored * std::abs(exact.gate[i]));
  }
}

TEST(Swiglu, GradientsFollowDouble) {
  expect_swiglu_gradients_follow_double<float>();
  expect_swiglu_gradients_follow_double<bfloat16>();
}

TEST(Swiglu, ExtremeGatesStayFinite) {
  const Vector gate = {1e4, -1e4, 88.8, -88.8, 104, -104, 0}, up(gate.size(), 1.0);
  const Vector expected = {1e4, 0, 88.8, 0, 104, 0, 0};
  const SwigluGradient gradient = run_swiglu_gradient<float>(up, gate, up);
  EXPECT_THAT(run_swiglu<float>(gate, up),
              ::testing::Pointwise(::testing::DoubleNear(1e-5), expected));
  EXPECT_THAT(gradient.out, ::testing::Pointwise(::testing::DoubleNear(1e-5), expected));
  EXPECT_THAT(gradient.up, ::testing::Pointwise(::testing::DoubleNear(1e-5), expected));
  EXPECT_THAT(gradient.gate,
              ::testing::Pointwise(::testing::DoubleNear(1e-5), Vector{1, 0, 1, 0, 1, 0, 0.5}));
}
}  // namespace
}  // namespace cadenza::model
