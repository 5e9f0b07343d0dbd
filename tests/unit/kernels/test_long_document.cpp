// SPDX-License-Identifier: Apache-2.0
// Accuracy does not depend on a document's length: a few queries against 64K keys and 64K queries
// against a few keys, for every kernel, in one piece, cut into tasks and merged from many calls.
#include <cmath>

#include "cadenza/base/random.hpp"
#include "unit/kernels/kernel_sets.hpp"
#include "unit/sanitized.hpp"

#ifndef KOKKOS_ENABLE_CUDA

namespace cadenza::testing {
namespace {

constexpr std::int64_t kLong = kSanitized ? 4096 : 65536;
constexpr std::int64_t kFew = 8;

/// Every query sees every key. q, dout [queries, H, D]; k, v [keys, G, D].
struct Rectangle {
  AttentionShape shape;
  std::int64_t queries, keys;
  Vector q, k, v, dout;
  Vector lse, delta;     ///< [queries, H] that the backward pass is given, exact in float32
  DocumentResult exact;  ///< lse: of these keys alone
};

/// Exact in bfloat16.
Vector normal(const char* name, std::int64_t count, double factor) {
  Vector numbers(static_cast<std::size_t>(count));
  const auto stream =
      static_cast<std::uint64_t>(name[0]) * 256 + static_cast<std::uint64_t>(name[1]);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    // Four uniform numbers of 16 bits: nearly normal.
    std::uint64_t bits = random_bits(7, stream, i);
    double sum = -2;
    for (int part = 0; part < 4; ++part, bits >>= 16)
      sum += static_cast<double>(bits & 0xffff) / 65536;
    const auto number = static_cast<float>(sum * std::sqrt(3.0) * factor);
    numbers[i] = static_cast<double>(static_cast<float>(bfloat16(number)));
  }
  return numbers;
}

/// One query of one head by definition. Other keys, which the rectangle does not hold, bring
/// `others` to the row's lse and zeros to its output.
void attend_exactly(Rectangle& of, std::int64_t query, int head, double others) {
  const auto dim = static_cast<std::size_t>(of.shape.head_dim);
  const auto keys = static_cast<std::size_t>(of.keys);
  const auto row = static_cast<std::size_t>(query * of.shape.heads + head);
  const double *q = &of.q[row * dim], *dout = &of.dout[row * dim];
  const auto at = [&](std::size_t key) {
    return (key * static_cast<std::size_t>(of.shape.kv_heads) +
            static_cast<std::size_t>(head / of.shape.group())) *
           dim;
  };
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  Vector logits(keys);
  double peak = -kInfinity, sum = 0;
  for (std::size_t j = 0; j < keys; ++j) {
    for (std::size_t d = 0; d < dim; ++d) logits[j] += scale * q[d] * of.k[at(j) + d];
    peak = std::max(peak, logits[j]);
  }
  for (const double logit : logits) sum += std::exp(logit - peak);
  const double own = peak + std::log(sum);
  of.exact.lse[row] = own;
  const double whole = std::max(own, others) + std::log1p(std::exp(-std::abs(own - others)));
  of.lse[row] = static_cast<float>(whole);
  double delta = 0;
  for (std::size_t j = 0; j < keys; ++j) {
    const double weight = std::exp(logits[j] - own);
    for (std::size_t d = 0; d < dim; ++d) of.exact.out[row * dim + d] += weight * of.v[at(j) + d];
  }
  for (std::size_t d = 0; d < dim; ++d)
    delta += std::exp(own - whole) * of.exact.out[row * dim + d] * dout[d];
  of.delta[row] = static_cast<float>(delta);
  for (std::size_t j = 0; j < keys; ++j) {
    const double p = std::exp(logits[j] - of.lse[row]);
    double dp = 0;
    for (std::size_t d = 0; d < dim; ++d) dp += dout[d] * of.v[at(j) + d];
    const double ds = scale * p * (dp - of.delta[row]);
    for (std::size_t d = 0; d < dim; ++d) {
      of.exact.dq[row * dim + d] += ds * of.k[at(j) + d];
      of.exact.dk[at(j) + d] += ds * q[d];
      of.exact.dv[at(j) + d] += p * dout[d];
    }
  }
}

/// Unit-normal rows; queries times `sharpness`. Where queries are many they are those of a causal
/// document: query i has i more keys.
Rectangle make_rectangle(const AttentionShape& shape, std::int64_t queries, std::int64_t keys,
                         double sharpness) {
  const std::int64_t statistics = queries * shape.heads, dim = shape.head_dim;
  const std::int64_t key_elements = keys * shape.kv_heads * dim;
  Rectangle made{shape,
                 queries,
                 keys,
                 normal("q", statistics * dim, sharpness),
                 normal("k", key_elements, 1),
                 normal("v", key_elements, 1),
                 normal("dO", statistics * dim, 1),
                 {},
                 {},
                 {}};
  made.lse.resize(static_cast<std::size_t>(statistics));
  made.delta = made.exact.lse = made.lse;
  made.exact.out.resize(made.q.size());
  made.exact.dq.resize(made.q.size());
  made.exact.dk.resize(made.k.size());
  made.exact.dv.resize(made.k.size());
  for (std::int64_t i = 0; i < queries; ++i) {
    const double others =
        keys < queries ? std::log(i + 1.0) + sharpness * sharpness / 2 : -kInfinity;
    for (int h = 0; h < shape.heads; ++h) attend_exactly(made, i, h, others);
  }
  return made;
}

/// The longer side is cut into calls * tasks equal pieces, `tasks` of them a call.
struct Cut {
  std::int64_t calls = 1, tasks = 1;
};

/// The rectangle's rows in a kernel's formats, and its results.
template <typename Real>
class Run {
 public:
  explicit Run(const Rectangle& of)
      : of_(of),
        q_(stored<Real>(of.q)),
        k_(stored<Real>(of.k)),
        v_(stored<Real>(of.v)),
        dout_(stored<Real>(of.dout)),
        given_lse_(stored<float>(of.lse)),
        delta_(stored<float>(of.delta)),
        out_(of.q.size()),
        lse_(of.lse.size(), -std::numeric_limits<float>::infinity()),
        dq_(of.q.size()),
        dk_(of.k.size()),
        dv_(of.k.size()) {}

  DocumentResult results(const Kernels<Real>& by, const Cut& cut) {
    for (std::int64_t call = 0; call < cut.calls; ++call) {
      const std::int64_t first = call * cut.tasks, pieces = cut.calls * cut.tasks;
      by.forward(of_.shape, {}, list(lse_, first, cut.tasks, pieces));
      by.backward(of_.shape, {}, list(given_lse_, first, cut.tasks, pieces));
    }
    fence();
    return {wide(out_), wide(lse_), wide(dq_), wide(dk_), wide(dv_)};
  }

 private:
  template <typename T>
  static std::vector<T> stored(const Vector& values) {
    std::vector<T> made;
    for (const double value : values) made.push_back(T(static_cast<float>(value)));
    return made;
  }
  static Vector wide(const std::vector<float>& values) { return {values.begin(), values.end()}; }

  kernels::TaskList<Real> list(std::vector<float>& lse, std::int64_t first, std::int64_t count,
                               std::int64_t pieces) {
    kernels::TaskList<Real> made;
    made.queries.push_back({{0, of_.queries},
                            q_.data(),
                            out_.data(),
                            lse.data(),
                            dout_.data(),
                            delta_.data(),
                            dq_.data(),
                            {},
                            {}});
    made.keys.push_back({{0, of_.keys}, k_.data(), v_.data(), dk_.data(), dv_.data(), {}});
    for (std::int64_t piece = first; piece < first + count; ++piece) {
      Task task{0, {0, of_.queries}, {0, of_.keys}, {0, of_.shape.heads}, Band::full()};
      Range& cut = of_.keys < of_.queries ? task.q : task.k;
      cut = {piece * cut.end / pieces, (piece + 1) * cut.end / pieces};
      made.tasks.push_back({task, 0, 0});
    }
    return made;
  }

  const Rectangle& of_;
  std::vector<Real> q_, k_, v_, dout_;
  std::vector<float> given_lse_, delta_, out_, lse_, dq_, dk_, dv_;
};

/// Everything but lse is relative L2; lse is what a row's weight is off by.
void expect_accurate(const Rectangle& of, const Cut& cut, double float32, double lse) {
  for_each_implementation([&]<typename Real>(const Kernels<Real>& by) {
    const bool exact_products = std::is_same_v<Real, float>;
    const auto got = Run<Real>(of).results(by, cut);
    EXPECT_LE(relative_difference(got.out, of.exact.out), exact_products ? float32 : kBfloat16.out);
    EXPECT_LE(max_difference(got.lse, of.exact.lse), exact_products ? lse : kBfloat16.lse);
    const double gradients = exact_products ? float32 : kBfloat16.gradients;
    EXPECT_LE(relative_difference(got.dq, of.exact.dq), gradients);
    EXPECT_LE(relative_difference(got.dk, of.exact.dk), gradients);
    EXPECT_LE(relative_difference(got.dv, of.exact.dv), gradients);
  });
}

/// float32 results at 64K keys or queries, as kernels/README.md states them. A logit's error moves
/// its probability, so lse is absolute: a few units of a logit of 16.
constexpr double kAccuracy = 2e-6, kLse = 4e-6;

TEST(LongDocument, KeepsItsAccuracy) {
  struct Shape {
    int dim;
    double sharpness, room;
  };
  // With long products and sharp logits the rounding of a logit decides, not that of sums.
  for (const Shape& of : {Shape{32, 3, 1}, {64, 1, 1}, {128, 3, 2}}) {
    SCOPED_TRACE("head_dim " + std::to_string(of.dim) + ", Q times " +
                 std::to_string(of.sharpness));
    const auto expect = [&](std::int64_t queries, std::int64_t keys) {
      expect_accurate(make_rectangle({1, 1, of.dim}, queries, keys, of.sharpness), {},
                      of.room * kAccuracy, of.room * kLse);
    };
    expect(kFew, kLong);
    expect(kLong, kFew);
  }
}

/// A key's gradient has 64K additions for each head of its group.
TEST(LongDocument, KeepsItsAccuracyWithGroupsOfHeads) {
  expect_accurate(make_rectangle({4, 1, 32}, kLong, kFew, 1), {}, kAccuracy, kLse);
}

TEST(LongDocument, KeepsItsAccuracyCutIntoTasks) {
  expect_accurate(make_rectangle({1, 1, 32}, kFew, kLong, 3), {1, 512}, kAccuracy, kLse);
  expect_accurate(make_rectangle({1, 1, 32}, kLong, kFew, 3), {1, 512}, kAccuracy, kLse);
}

/// As around a ring. Each call leaves a row's state as out and lse, rounded to float32.
TEST(LongDocument, KeepsItsAccuracyMergedFromCalls) {
  expect_accurate(make_rectangle({1, 1, 32}, kFew, kLong, 3), {64, 1}, kAccuracy, kLse);
  expect_accurate(make_rectangle({1, 1, 32}, kLong, kFew, 3), {64, 1}, kAccuracy, kLse);
}

}  // namespace
}  // namespace cadenza::testing

#endif
