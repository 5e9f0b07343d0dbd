// SPDX-License-Identifier: Apache-2.0
// matmul against the definition in float64.
#include "cadenza/kernels/matmul.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "unit/kernels/device_data.hpp"

namespace cadenza::testing {
namespace {

using kernels::Transpose;

struct Shape {
  Transpose a_op = Transpose::no;
  Transpose b_op = Transpose::no;
  std::int64_t m = 0, n = 0, k = 0;
};

template <typename Real>
std::vector<Real> numbers(std::int64_t count, std::mt19937_64& random) {
  std::normal_distribution<double> value;
  std::vector<Real> made(static_cast<std::size_t>(count));
  for (Real& number : made) number = static_cast<Real>(value(random));
  return made;
}

/// Compares one product; c_start fills C first.
template <typename Real>
void check_product(const Shape& s, Real alpha, Real beta, const std::vector<Real>& c_start,
                   std::mt19937_64& random) {
  SCOPED_TRACE(::testing::Message()
               << "m " << s.m << " n " << s.n << " k " << s.k << " a_op "
               << static_cast<int>(s.a_op) << " b_op " << static_cast<int>(s.b_op) << " alpha "
               << alpha << " beta " << beta);
  const auto a = numbers<Real>(s.m * s.k, random), b = numbers<Real>(s.k * s.n, random);
  const auto a_device = upload(a), b_device = upload(b), c_device = upload(c_start);
  kernels::matmul(s.a_op, s.b_op, s.m, s.n, s.k, alpha, a_device.data(), b_device.data(), beta,
                  c_device.data());
  fence();
  const auto c = download(c_device);
  for (std::int64_t i = 0; i < s.m; ++i) {
    for (std::int64_t j = 0; j < s.n; ++j) {
      double sum = 0, size = 0;
      for (std::int64_t l = 0; l < s.k; ++l) {
        const double x =
            a[static_cast<std::size_t>(s.a_op == Transpose::yes ? l * s.m + i : i * s.k + l)];
        const double y =
            b[static_cast<std::size_t>(s.b_op == Transpose::yes ? j * s.k + l : l * s.n + j)];
        sum += x * y;
        size += x * x * y * y;
      }
      const auto at = static_cast<std::size_t>(i * s.n + j);
      double expected = alpha * sum;
      double scale = std::abs(alpha) * std::sqrt(size);
      if (beta != 0) {
        expected += beta * c_start[at];
        scale += std::abs(beta * c_start[at]);
      }
      // k roundings of partial sums that are themselves about sqrt(size): a random walk of k steps.
      const double tolerance = 4 * std::numeric_limits<Real>::epsilon() *
                               std::sqrt(static_cast<double>(s.k) + 1) * scale;
      ASSERT_NEAR(c[at], expected, tolerance) << "element " << i << ", " << j;
    }
  }
}

template <typename Real>
class Matmul : public ::testing::Test {};
using Reals = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Matmul, Reals);

TYPED_TEST(Matmul, EqualsDefinition) {
  std::mt19937_64 random(1);
  const std::int64_t sizes[] = {0, 1, 2, 3, 7, 16, 33, 64, 130};
  const auto size = [&] { return sizes[random() % std::size(sizes)]; };
  for (int round = 0; round < 120; ++round) {
    const Shape s{static_cast<Transpose>(random() % 2), static_cast<Transpose>(random() % 2),
                  size(), size(), size()};
    const TypeParam alpha = round % 3 == 0 ? TypeParam(1) : TypeParam(-0.75);
    const TypeParam beta = static_cast<TypeParam>(round % 4) * TypeParam(0.5);
    check_product(s, alpha, beta, numbers<TypeParam>(s.m * s.n, random), random);
  }
}

TYPED_TEST(Matmul, DeepProduct) {
  std::mt19937_64 random(2);
  for (const Transpose b_op : {Transpose::no, Transpose::yes}) {
    check_product<TypeParam>({Transpose::no, b_op, 5, 18, 1000}, 1, 1,
                             numbers<TypeParam>(90, random), random);
  }
}

TYPED_TEST(Matmul, BetaZeroDoesNotReadC) {
  std::mt19937_64 random(3);
  for (const std::int64_t k : {0, 1, 40}) {
    for (const Transpose op : {Transpose::no, Transpose::yes}) {
      const std::vector<TypeParam> nan(17 * 21, std::numeric_limits<TypeParam>::quiet_NaN());
      check_product<TypeParam>({op, op, 17, 21, k}, 1, 0, nan, random);
    }
  }
}

}  // namespace
}  // namespace cadenza::testing
