// SPDX-License-Identifier: Apache-2.0
// The norm against its definition and central differences. In double this checks the mathematics;
// float and bfloat16 must then follow double within bounds that come from counting roundings.
#include "cadenza/model/layers.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "unit/model/support.hpp"
#include "unit/sanitized.hpp"

namespace cadenza::model {
namespace {

using test::derivative;
using test::download_double;
using test::kRounding;
using test::kShapes;
using test::normal;
using test::Shape;
using test::upload_as;
using test::Vector;

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
  using Sum = Accumulator<Real>;
  const auto in = upload_as<Sum>(x);
  const auto w = upload_as<Real>(weight);
  Array<Real> y("y", x.size());
  Array<Sum> rstd("rstd", static_cast<std::size_t>(shape.rows));
  rms_norm<Real>(nullptr, in.data(), w.data(), shape.rows, shape.width, kEps, y.data(),
                 rstd.data());
  fence();
  return {download_double(y), download_double(rstd)};
}

struct NormGradient {
  Vector dx, dweight;
  Vector rounded, y;  ///< dx as Real and the norm's output again
};

/// @param start  what the gradients hold before
template <typename Real>
NormGradient run_norm_gradient(const Vector& dy, const Vector& x, const Vector& weight, Shape shape,
                               const NormGradient& start) {
  using Sum = Accumulator<Real>;
  const auto grad = upload_as<Sum>(dy), in = upload_as<Sum>(x);
  const auto w = upload_as<Real>(weight);
  const auto rstd = upload_as<Sum>(run_norm<Sum>(x, weight, shape).rstd);
  const auto dx = upload_as<Sum>(start.dx), dweight = upload_as<Sum>(start.dweight);
  const Array<Real> rounded("rounded", x.size()), y("y", x.size());
  const Array<Sum> partials("partials",
                            static_cast<std::size_t>(norm_partials(shape.rows, shape.width)));
  rms_norm_gradient<Real>(
      {grad.data(), in.data(), rstd.data(), w.data()},
      {dx.data(), dx.data(), rounded.data(), y.data(), dweight.data(), partials.data()}, shape.rows,
      shape.width);
  fence();
  return {download_double(dx), download_double(dweight), download_double(rounded),
          download_double(y)};
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
    const Vector x = normal(shape.rows * shape.width, random);
    const Vector w = test::rounded_to<Real>(normal(shape.width, random));
    const Norm expected = reference_norm(x, w, shape), got = run_norm<Real>(x, w, shape);
    // Two products and a rounded rstd; the sum itself is made in double. y is rounded to Real.
    const double relative =
        4 * kRounding<Accumulator<Real>> + static_cast<double>(shape.width + 4) * kRounding<double>;
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(got.y[i], expected.y[i],
                  (relative + kRounding<Real>)*1.001 * std::abs(expected.y[i]));
    }
    for (std::size_t row = 0; row < expected.rstd.size(); ++row) {
      EXPECT_NEAR(got.rstd[row], expected.rstd[row], relative * expected.rstd[row]);
    }
  }
}

TEST(RmsNorm, FollowsItsDefinition) {
  expect_norm_by_definition<double>();
  expect_norm_by_definition<float>();
  expect_norm_by_definition<bfloat16>();
}

TEST(RmsNorm, AddsTheResidualFirst) {
  std::mt19937_64 random(12);
  for (const Shape shape : kShapes) {
    const Vector x = normal(shape.rows * shape.width, random), w = normal(shape.width, random);
    const Vector residual = normal(shape.rows * shape.width, random);
    const auto in = upload_as<double>(x), add = upload_as<double>(residual),
               weight = upload_as<double>(w);
    const Array<double> y("y", x.size()), rstd("rstd", static_cast<std::size_t>(shape.rows));
    rms_norm<double>(add.data(), in.data(), weight.data(), shape.rows, shape.width, kEps, y.data(),
                     rstd.data());
    fence();
    Vector sum = x;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += residual[i];
    EXPECT_EQ(download_double(in), sum);
    const Norm expected = run_norm<double>(sum, w, shape);
    EXPECT_EQ(download_double(y), expected.y);
    EXPECT_EQ(download_double(rstd), expected.rstd);
  }
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
    const NormGradient got = run_norm_gradient<double>(
        dy, x, w, shape, {Vector(x.size(), 0.0), Vector(w.size(), 0.0), {}, {}});
    const auto f = [&] { return dot(dy, reference_norm(x, w, shape).y); };
    constexpr std::size_t kEvery = cadenza::testing::kSanitized ? 7 : 1;
    for (std::size_t i = 0; i < x.size(); i += kEvery) {
      EXPECT_NEAR(got.dx[i], derivative(f, x[i]), 1e-8);
    }
    for (std::size_t i = 0; i < w.size(); i += kEvery) {
      EXPECT_NEAR(got.dweight[i], derivative(f, w[i]), 1e-8);
    }
  }
}

TEST(RmsNorm, GradientsAreAddedToWhatIsThere) {
  std::mt19937_64 random(3);
  for (const Shape shape : kShapes) {
    const Vector x = normal(shape.rows * shape.width, random), w = normal(shape.width, random);
    const Vector dy = normal(shape.rows * shape.width, random);
    const NormGradient zero{Vector(x.size(), 0.0), Vector(w.size(), 0.0), {}, {}};
    const NormGradient start{
        normal(shape.rows * shape.width, random), normal(shape.width, random), {}, {}};
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
    const NormGradient start{
        normal(shape.rows * shape.width, random), normal(shape.width, random), {}, {}};
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
        EXPECT_NEAR(got.y[i], exact.y[i], 4 * u * std::abs(exact.y[i]));
      }
    }
    for (std::size_t c = 0; c < width; ++c) {
      // Sums over 32 rows are made in float, those over their results in double.
      EXPECT_NEAR(got.dweight[c], exact.dweight[c],
                  (32 + 3) * u * weight_terms[c] + 2 * u * std::abs(exact.dweight[c]));
    }
  }
}

TEST(RmsNorm, RoundedGradientsAreTheGradientsRounded) {
  std::mt19937_64 random(10);
  for (const Shape shape : kShapes) {
    const Vector x = normal(shape.rows * shape.width, random);
    const Vector w = test::rounded_to<bfloat16>(normal(shape.width, random));
    const Vector dy = normal(shape.rows * shape.width, random);
    const NormGradient start{
        normal(shape.rows * shape.width, random), normal(shape.width, random), {}, {}};
    const NormGradient exact = run_norm_gradient<float>(dy, x, w, shape, start);
    const NormGradient got = run_norm_gradient<bfloat16>(dy, x, w, shape, start);
    EXPECT_EQ(got.dx, exact.dx);
    EXPECT_EQ(got.dweight, exact.dweight);
    EXPECT_EQ(got.rounded, test::rounded_to<bfloat16>(exact.dx));
    EXPECT_EQ(got.y, test::rounded_to<bfloat16>(exact.y));
  }
}

/// A block of rows adds up in one order, whichever thread takes it.
TEST(RmsNorm, GradientWithoutResidualOrOutputIsTheRest) {
  std::mt19937_64 random(11);
  const Shape shape{70, 9};
  const Vector x = normal(shape.rows * shape.width, random), w = normal(shape.width, random);
  const Vector dy = normal(shape.rows * shape.width, random);
  const NormGradient zero{Vector(x.size(), 0.0), Vector(w.size(), 0.0), {}, {}};
  const NormGradient whole = run_norm_gradient<double>(dy, x, w, shape, zero);
  const auto grad = upload_as<double>(dy), in = upload_as<double>(x), weight = upload_as<double>(w),
             rstd = upload_as<double>(run_norm<double>(x, w, shape).rstd);
  const Array<double> dx("dx", x.size()), dweight("dweight", w.size()), partials("partials", 3 * 9);
  rms_norm_gradient<double>({grad.data(), in.data(), rstd.data(), weight.data()},
                            {nullptr, dx.data(), nullptr, nullptr, dweight.data(), partials.data()},
                            shape.rows, shape.width);
  fence();
  EXPECT_EQ(download_double(dx), whole.dx);
  EXPECT_EQ(download_double(dweight), whole.dweight);
}
}  // namespace
}  // namespace cadenza::model
