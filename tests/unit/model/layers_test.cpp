// SPDX-License-Identifier: Apache-2.0
// Norm, feed-forward gate and embedding against their definitions and central differences. In
// double this checks the mathematics; float must then follow double within bounds that come from
// counting roundings.
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
using testing::download;
using testing::upload;

struct Shape {
  std::int64_t rows, width;
  std::size_t elements() const { return static_cast<std::size_t>(rows * width); }
};
const std::vector<Shape> kShapes = {{1, 1}, {1, 7}, {5, 1}, {3, 17}, {4, 16}, {7, 33}, {131, 5}};
constexpr double kEps = 1e-5;

struct Norm {
  Vector y, rstd;
};

/// By definition.
Norm reference_norm(const Vector& x, const Vector& weight, Shape shape) {
  Norm norm;
  const auto width = static_cast<std::size_t>(shape.width);
  for (std::size_t row = 0; row < static_cast<std::size_t>(shape.rows); ++row) {
    double squares = 0;
    for (std::size_t c = 0; c < width; ++c) squares += x[row * width + c] * x[row * width + c];
    norm.rstd.push_back(1 / std::sqrt(squares / static_cast<double>(shape.width) + kEps));
    for (std::size_t c = 0; c < width; ++c) {
      norm.y.push_back(x[row * width + c] * norm.rstd.back() * weight[c]);
    }
  }
  return norm;
}

template <typename Real>
Norm run_norm(const Vector& x, const Vector& weight, Shape shape) {
  const auto in = upload_as<Real>(x), w = upload_as<Real>(weight);
  Array<Real> y("y", x.size()), rstd("rstd", static_cast<std::size_t>(shape.rows));
  rms_norm(in.data(), w.data(), shape.rows, shape.width, kEps, y.data(), rstd.data());
  fence();
  return {download_double(y), download_double(rstd)};
}

struct NormGradient {
  Vector dx, dweight;
};

/// @param start  what the gradients hold before
template <typename Real>
NormGradient run_norm_gradient(const Vector& dy, const Vector& x, const Vector& weight, Shape shape,
                               const NormGradient& start) {
  const auto grad = upload_as<Real>(dy), in = upload_as<Real>(x), w = upload_as<Real>(weight);
  const auto rstd = upload_as<Real>(run_norm<Real>(x, weight, shape).rstd);
  const auto dx = upload_as<Real>(start.dx), dweight = upload_as<Real>(start.dweight);
  rms_norm_gradient(grad.data(), in.data(), w.data(), rstd.data(), shape.rows, shape.width,
                    dx.data(), dweight.data());
  fence();
  return {download_double(dx), download_double(dweight)};
}

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

template <typename Real>
void expect_norm_by_definition() {
  std::mt19937_64 random(1);
  for (const Shape shape : kShapes) {
    SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.width);
    const Vector x = normal(shape.rows * shape.width, random), w = normal(shape.width, random);
    const Norm expected = reference_norm(x, w, shape), got = run_norm<Real>(x, w, shape);
    // Two products and a rounded rstd; the sum itself is made in double.
    const double relative =
        4 * kRounding<Real> + static_cast<double>(shape.width + 4) * kRounding<double>;
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(got.y[i], expected.y[i], relative * std::abs(expected.y[i]));
    }
    for (std::size_t row = 0; row < expected.rstd.size(); ++row) {
      EXPECT_NEAR(got.rstd[row], expected.rstd[row], relative * expected.rstd[row]);
    }
  }
}

TEST(RmsNorm, FollowsItsDefinition) {
  expect_norm_by_definition<double>();
  expect_norm_by_definition<float>();
}

TEST(RmsNorm, RowOfZerosAndHugeRowsStayFinite) {
  const Shape shape{2, 4};
  const Vector x = {0, 0, 0, 0, 1e25, -1e25, 1e25, 1e25};  // whose squares no float holds
  const Norm got = run_norm<float>(x, {1, 1, 1, 1}, shape);
  EXPECT_NEAR(got.rstd[0], 1 / std::sqrt(kEps), 1e-3);
  EXPECT_THAT(got.y,
              ::testing::Pointwise(::testing::DoubleNear(1e-6), Vector{0, 0, 0, 0, 1, -1, 1, 1}));
}

TEST(RmsNorm, GradientsAreCentralDifferences) {
  std::mt19937_64 random(2);
  for (const Shape shape : kShapes) {
    SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.width);
    Vector x = normal(shape.rows * shape.width, random), w = normal(shape.width, random);
    // Near zero the norm bends at sqrt(eps) = 3e-3, which a difference of 1e-3 cannot follow.
    for (double& value : x) value += std::copysign(0.5, value);
    const Vector dy = normal(shape.rows * shape.width, random);
    const NormGradient got =
        run_norm_gradient<double>(dy, x, w, shape, {Vector(x.size(), 0.0), Vector(w.size(), 0.0)});
    const auto f = [&] { return dot(dy, reference_norm(x, w, shape).y); };
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(got.dx[i], derivative(f, x[i]), 1e-8);
    for (std::size_t i = 0; i < w.size(); ++i) {
      EXPECT_NEAR(got.dweight[i], derivative(f, w[i]), 1e-8);
    }
  }
}

TEST(RmsNorm, GradientsAreAddedToWhatIsThere) {
  std::mt19937_64 random(3);
  for (const Shape shape : kShapes) {
    const Vector x = normal(shape.rows * shape.width, random), w = normal(shape.width, random);
    const Vector dy = normal(shape.rows * shape.width, random);
    const NormGradient zero{Vector(x.size(), 0.0), Vector(w.size(), 0.0)};
    const NormGradient start{normal(shape.rows * shape.width, random), normal(shape.width, random)};
    const NormGradient fresh = run_norm_gradient<double>(dy, x, w, shape, zero);
    const NormGradient added = run_norm_gradient<double>(dy, x, w, shape, start);
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(added.dx[i], start.dx[i] + fresh.dx[i], 1e-14 * (1 + std::abs(fresh.dx[i])));
    }
    for (std::size_t i = 0; i < w.size(); ++i) {
      EXPECT_NEAR(added.dweight[i], start.dweight[i] + fresh.dweight[i],
                  1e-14 * (1 + std::abs(fresh.dweight[i])));
    }
  }
}

TEST(RmsNorm, FloatGradientsFollowDouble) {
  std::mt19937_64 random(4);
  constexpr double u = kRounding<float>;
  for (const Shape shape : kShapes) {
    SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.width);
    const auto width = static_cast<std::size_t>(shape.width);
    const Vector x = normal(shape.rows * shape.width, random), w = normal(shape.width, random);
    const Vector dy = normal(shape.rows * shape.width, random);
    const Vector rstd = reference_norm(x, w, shape).rstd;
    const NormGradient start{normal(shape.rows * shape.width, random), normal(shape.width, random)};
    const NormGradient exact = run_norm_gradient<double>(dy, x, w, shape, start);
    const NormGradient got = run_norm_gradient<float>(dy, x, w, shape, start);
    Vector weight_terms(width, 0.0);
    for (std::size_t row = 0; row < rstd.size(); ++row) {
      double mean = 0;
      for (std::size_t c = 0; c < width; ++c) {
        const std::size_t i = row * width + c;
        mean += std::abs(dy[i] * w[c] * x[i]) / static_cast<double>(width);
        weight_terms[c] += std::abs(dy[i] * x[i]) * rstd[row];
      }
      for (std::size_t c = 0; c < width; ++c) {
        const std::size_t i = row * width + c;
        // At most eight roundings lie on the way of each of the two terms; one more adds them.
        const double terms =
            rstd[row] * (std::abs(dy[i] * w[c]) + std::abs(x[i]) * rstd[row] * rstd[row] * mean);
        EXPECT_NEAR(got.dx[i], exact.dx[i], 8 * u * terms + 2 * u * std::abs(exact.dx[i]));
      }
    }
    for (std::size_t c = 0; c < width; ++c) {
      EXPECT_NEAR(got.dweight[c], exact.dweight[c],
                  3 * u * weight_terms[c] + 2 * u * std::abs(exact.dweight[c]));
    }
  }
}

double reference_swiglu(double gate, double up) {
  return gate / (1 + std::exp(-gate)) * up;
}

template <typename Real>
Vector run_swiglu(const Vector& gate, const Vector& up) {
  const auto g = upload_as<Real>(gate), u = upload_as<Real>(up);
  Array<Real> out("out", gate.size());
  swiglu(g.data(), u.data(), static_cast<std::int64_t>(gate.size()), out.data());
  fence();
  return download_double(out);
}

struct SwigluGradient {
  Vector gate, up, out;
};

template <typename Real>
SwigluGradient run_swiglu_gradient(const Vector& dout, const Vector& gate, const Vector& up) {
  const auto d = upload_as<Real>(dout), g = upload_as<Real>(gate), u = upload_as<Real>(up);
  Array<Real> out("out", gate.size());
  swiglu_gradient(d.data(), static_cast<std::int64_t>(gate.size()), g.data(), u.data(), out.data());
  fence();
  return {download_double(g), download_double(u), download_double(out)};
}

template <typename Real>
void expect_swiglu_by_definition() {
  std::mt19937_64 random(5);
  for (const std::int64_t count : {1, 3, 64, 1001}) {
    const Vector gate = normal(count, random, 4), up = normal(count, random);
    const Vector got = run_swiglu<Real>(gate, up);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double expected = reference_swiglu(gate[i], up[i]);
      // exp is good to two units; the rest are four roundings.
      EXPECT_NEAR(got[i], expected, 8 * kRounding<Real> * std::abs(expected));
    }
  }
}

TEST(Swiglu, FollowsItsDefinition) {
  expect_swiglu_by_definition<double>();
  expect_swiglu_by_definition<float>();
}

TEST(Swiglu, GradientsAreCentralDifferences) {
  std::mt19937_64 random(6);
  for (const std::int64_t count : {1, 3, 64, 257}) {
    Vector gate = normal(count, random, 2), up = normal(count, random);
    const Vector dout = normal(count, random);
    const SwigluGradient got = run_swiglu_gradient<double>(dout, gate, up);
    for (std::size_t i = 0; i < gate.size(); ++i) {
      const auto f = [&] { return dout[i] * reference_swiglu(gate[i], up[i]); };
      EXPECT_NEAR(got.out[i], reference_swiglu(gate[i], up[i]), 1e-14);
      EXPECT_NEAR(got.gate[i], derivative(f, gate[i]), 1e-9);
      EXPECT_NEAR(got.up[i], derivative(f, up[i]), 1e-9);
    }
  }
}

TEST(Swiglu, FloatGradientsFollowDouble) {
  std::mt19937_64 random(7);
  const Vector gate = normal(1001, random, 4), up = normal(1001, random);
  const Vector dout = normal(1001, random);
  const SwigluGradient exact = run_swiglu_gradient<double>(dout, gate, up);
  const SwigluGradient got = run_swiglu_gradient<float>(dout, gate, up);
  constexpr double u = kRounding<float>;
  for (std::size_t i = 0; i < gate.size(); ++i) {
    EXPECT_NEAR(got.out[i], exact.out[i], 8 * u * std::abs(exact.out[i]));
    EXPECT_NEAR(got.up[i], exact.up[i], 8 * u * std::abs(exact.up[i]));
    // sigmoid + silu (1 - sigmoid): the two may cancel, and 1 - sigmoid loses up to u itself.
    const double terms = std::abs(dout[i] * up[i]) * (1 + 2 * std::abs(gate[i]));
    EXPECT_NEAR(got.gate[i], exact.gate[i], 8 * u * terms);
  }
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

TEST(Embed, CopiesTheRowsOfTheTokens) {
  std::mt19937_64 random(8);
  for (const Shape shape : kShapes) {
    const std::int64_t vocab = 6;
    const Vector table = normal(vocab * shape.width, random);
    const auto tokens = test::ids(shape.rows, 0, vocab - 1, random);
    const auto values = upload_as<float>(table);
    const auto at = upload(tokens);
    Array<float> x("x", shape.elements());
    embed(values.data(), at.data(), shape.rows, shape.width, x.data());
    fence();
    const Vector got = download_double(x);
    for (std::int64_t i = 0; i < shape.rows * shape.width; ++i) {
      const auto row = static_cast<std::size_t>(i / shape.width);
      EXPECT_EQ(got[static_cast<std::size_t>(i)],
                table[static_cast<std::size_t>(tokens[row] * shape.width + i % shape.width)]);
    }
  }
}

TEST(Embed, GradientAddsTheRowsInTheirOrder) {
  std::mt19937_64 random(9);
  for (const Shape shape : kShapes) {
    const std::int64_t vocab = 3;  // so that tokens repeat
    const auto dx = testing::convert<float>(normal(shape.rows * shape.width, random));
    const auto start = testing::convert<float>(normal(vocab * shape.width, random));
    const auto tokens = test::ids(shape.rows, 0, vocab - 1, random);
    const auto grad = upload(dx);
    const auto dtable = upload(start);
    const auto at = upload(tokens);
    embed_gradient(grad.data(), at.data(), shape.rows, shape.width, dtable.data());
    fence();
    std::vector<float> expected = start;
    for (std::int64_t i = 0; i < shape.rows * shape.width; ++i) {
      const auto row = static_cast<std::size_t>(i / shape.width);
      expected[static_cast<std::size_t>(tokens[row] * shape.width + i % shape.width)] +=
          dx[static_cast<std::size_t>(i)];
    }
    EXPECT_EQ(download(dtable), expected);  // bit by bit: the order is part of the contract
  }
}

TEST(SumOfSquares, IsMadeInDouble) {
  // In float the small ones would vanish beside the first.
  std::vector<float> values(100001, 1.0F);
  values[0] = 1e6F;
  const auto at = upload(values);
  EXPECT_EQ(sum_of_squares(at.data(), 100001), 1e12 + 1e5);
  EXPECT_EQ(sum_of_squares(at.data(), 0), 0);
}

}  // namespace
}  // namespace cadenza::model
