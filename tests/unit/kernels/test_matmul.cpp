// SPDX-License-Identifier: Apache-2.0
// matmul against the definition in float64, for every pair of types.
#include "cadenza/kernels/matmul.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "../../../kernels/matmul/multiply.hpp"
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
double number(const Real& value) {
  return static_cast<Accumulator<Real>>(value);
}

/// Largest relative error of storing a number: half a unit of 8 bits in bfloat16.
template <typename Real>
constexpr double kRounding = std::numeric_limits<Real>::epsilon() / 2;
template <>
constexpr double kRounding<bfloat16> = 0x1p-8;

template <typename Real>
std::vector<Real> numbers(std::int64_t count, std::mt19937_64& random) {
  std::normal_distribution<double> value;
  std::vector<Real> made(static_cast<std::size_t>(count));
  for (Real& each : made) each = static_cast<Real>(static_cast<Accumulator<Real>>(value(random)));
  return made;
}

template <typename In, typename Out>
struct Types {
  using In_t = In;
  using Out_t = Out;
};

struct Factors {
  double alpha = 1, beta = 0;
};

/// Compares one product by `multiply`; c_start fills C first.
template <typename In, typename Out, typename Multiply>
void check_product_by(const Multiply& multiply, const Shape& s, Factors factors,
                      const std::vector<Out>& c_start, std::mt19937_64& random) {
  using Sum = Accumulator<In>;
  SCOPED_TRACE(::testing::Message()
               << "m " << s.m << " n " << s.n << " k " << s.k << " a_op "
               << static_cast<int>(s.a_op) << " b_op " << static_cast<int>(s.b_op) << " alpha "
               << factors.alpha << " beta " << factors.beta);
  const auto a = numbers<In>(s.m * s.k, random), b = numbers<In>(s.k * s.n, random);
  const auto a_device = upload(a), b_device = upload(b);
  const auto c_device = upload(c_start);
  multiply(s, static_cast<Sum>(factors.alpha), a_device.data(), b_device.data(),
           static_cast<Sum>(factors.beta), c_device.data());
  fence();
  const auto c = download(c_device);
  for (std::int64_t i = 0; i < s.m; ++i) {
    for (std::int64_t j = 0; j < s.n; ++j) {
      double sum = 0, size = 0;
      for (std::int64_t l = 0; l < s.k; ++l) {
        const double x = number(
            a[static_cast<std::size_t>(s.a_op == Transpose::yes ? l * s.m + i : i * s.k + l)]);
        const double y = number(
            b[static_cast<std::size_t>(s.b_op == Transpose::yes ? j * s.k + l : l * s.n + j)]);
        sum += x * y;
        size += x * x * y * y;
      }
      const auto at = static_cast<std::size_t>(i * s.n + j);
      double expected = factors.alpha * sum;
      double scale = std::abs(factors.alpha) * std::sqrt(size);
      if (factors.beta != 0) {
        expected += factors.beta * number(c_start[at]);
        scale += std::abs(factors.beta * number(c_start[at]));
      }
      // k roundings of partial sums that are themselves about sqrt(size): a random walk of k steps.
      // Products of bfloat16 are exact in float. What is stored is rounded once more.
      double tolerance = 8 * kRounding<Sum> * std::sqrt(static_cast<double>(s.k) + 1) * scale +
                         kRounding<Out> * std::abs(expected);
      // Some kernels of cuBLAS round the product to C's type before they add C.
      if (kDeviceIsCuda && factors.beta != 0) {
        tolerance += kRounding<Out> * std::abs(factors.alpha * sum);
      }
      ASSERT_NEAR(number(c[at]), expected, tolerance) << "element " << i << ", " << j;
    }
  }
}

template <typename In, typename Out>
void check_product(const Shape& shape, Factors factors, const std::vector<Out>& c_start,
                   std::mt19937_64& random) {
  const auto multiply = [](const Shape& s, auto alpha, const In* a, const In* b, auto beta,
                           Out* c) {
    kernels::matmul<In>(s.a_op, s.b_op, s.m, s.n, s.k, alpha, a, b, beta, c);
  };
  check_product_by<In>(multiply, shape, factors, c_start, random);
}

template <typename Pair>
class Matmul : public ::testing::Test {
 protected:
  using In = typename Pair::In_t;
  using Out = typename Pair::Out_t;
  void SetUp() override {
    if (std::is_same_v<In, bfloat16> && !kernels::supports_bfloat16()) {
      GTEST_SKIP() << "no bfloat16 on this machine";
    }
  }
};
using Pairs = ::testing::Types<Types<float, float>, Types<double, double>, Types<bfloat16, float>,
                               Types<bfloat16, bfloat16>>;
TYPED_TEST_SUITE(Matmul, Pairs);

TYPED_TEST(Matmul, EqualsDefinition) {
  using Out = typename TypeParam::Out_t;
  std::mt19937_64 random(1);
  const std::int64_t sizes[] = {0, 1, 2, 3, 7, 16, 33, 64, 130};
  const auto size = [&] { return sizes[random() % std::size(sizes)]; };
  for (int round = 0; round < 120; ++round) {
    const Shape s{static_cast<Transpose>(random() % 2), static_cast<Transpose>(random() % 2),
                  size(), size(), size()};
    const Factors factors{round % 3 == 0 ? 1 : -0.75, (round % 4) * 0.5};
    check_product<typename TypeParam::In_t>(s, factors, numbers<Out>(s.m * s.n, random), random);
  }
}

/// Tall products have a way of their own: their right factor is packed first.
TYPED_TEST(Matmul, TallProduct) {
  using Out = typename TypeParam::Out_t;
  std::mt19937_64 random(4);
  for (const Transpose a_op : {Transpose::no, Transpose::yes}) {
    for (const Transpose b_op : {Transpose::no, Transpose::yes}) {
      for (const double beta : {0.0, 1.0}) {
        check_product<typename TypeParam::In_t>({a_op, b_op, 2051, 19, 21}, {1, beta},
                                                numbers<Out>(2051 * 19, random), random);
      }
    }
  }
}

TYPED_TEST(Matmul, DeepProduct) {
  using Out = typename TypeParam::Out_t;
  std::mt19937_64 random(2);
  for (const Transpose b_op : {Transpose::no, Transpose::yes}) {
    check_product<typename TypeParam::In_t>({Transpose::no, b_op, 5, 18, 1000}, {1, 1},
                                            numbers<Out>(90, random), random);
  }
}

TYPED_TEST(Matmul, BetaZeroDoesNotReadC) {
  using Out = typename TypeParam::Out_t;
  std::mt19937_64 random(3);
  for (const std::int64_t m : {17, 2049}) {
    for (const std::int64_t k : {0, 1, 40}) {
      for (const Transpose op : {Transpose::no, Transpose::yes}) {
        const std::vector<Out> nan(static_cast<std::size_t>(m * 21),
                                   static_cast<Out>(std::numeric_limits<float>::quiet_NaN()));
        check_product<typename TypeParam::In_t>({op, op, m, 21, k}, {1, 0}, nan, random);
      }
    }
  }
}

/// The same weights may hold other numbers at the next call of the same shape.
TYPED_TEST(Matmul, RepeatedShapesReadTheirOperandsAgain) {
  using Out = typename TypeParam::Out_t;
  std::mt19937_64 random(5);
  for (int call = 0; call < 3; ++call) {
    check_product<typename TypeParam::In_t>({Transpose::no, Transpose::yes, 2048, 5, 8}, {1, 0},
                                            std::vector<Out>(2048 * 5), random);
  }
}

#ifndef KOKKOS_ENABLE_CUDA

/// What hosts without fast instructions for bfloat16 do, on every host; more rows than a part has.
TEST(WidenedMatmul, EqualsDefinition) {
  std::mt19937_64 random(6);
  const auto check = [&]<typename Out>(const Shape& shape, double beta, Out) {
    const auto multiply = [](const Shape& s, float alpha, const bfloat16* a, const bfloat16* b,
                             float b_factor, Out* c) {
      enqueue([=] {
        kernels::multiply_widened({s.a_op, s.b_op, s.m, s.n, s.k}, alpha, a, b, b_factor, c);
      });
    };
    check_product_by<bfloat16>(multiply, shape, {-0.75, beta},
                               numbers<Out>(shape.m * shape.n, random), random);
  };
  for (const Transpose a_op : {Transpose::no, Transpose::yes}) {
    for (const Transpose b_op : {Transpose::no, Transpose::yes}) {
      for (const double beta : {0.0, 1.0}) {
        for (const Shape& shape : {Shape{a_op, b_op, 1030, 19, 21}, {a_op, b_op, 18, 5, 1030}}) {
          check(shape, beta, float{});
          check(shape, beta, bfloat16{});
        }
      }
    }
  }
}

#endif

}  // namespace
}  // namespace cadenza::testing
