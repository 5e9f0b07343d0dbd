// SPDX-License-Identifier: Apache-2.0
// Logits from 1e3 to 1e30 and beyond float32: what no rounding may take from a row.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "unit/kernels/kernel_sets.hpp"
#include "unit/sanitized.hpp"

namespace cadenza::testing {

/// What queries are multiplied by; no factor makes 1 / sqrt(D) exact.
inline constexpr double kHugeFactors[] = {1.9e3,  1.9e6,  1.9e8,  1.9e9,
                                          1.9e10, 1.9e15, 1.9e20, 1.9e30};

/// By (query, head) of a case's only document, which is not rotated: whether its largest logit is
/// so far above the second that rounding cannot exchange the two, and takes the whole row.
inline std::vector<bool> clear_rows(const Case& of) {
  const DocumentData& data = of.documents.at(0);
  const auto dim = static_cast<std::size_t>(of.shape.head_dim);
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  std::vector<bool> clear;
  for (std::int64_t query = 0; query < data.length; ++query) {
    for (int head = 0; head < of.shape.heads; ++head) {
      const double* q = &data.q[static_cast<std::size_t>(query * of.shape.heads + head) * dim];
      double first = -kInfinity, second = -kInfinity, size = 0;
      for (const Piece& piece : of.pieces) {
        const Task& task = piece.task;
        if (!task.q.contains({query, query + 1}) || !task.heads.contains({head, head + 1}))
          continue;
        for (std::int64_t j = task.k.begin; j < task.k.end; ++j) {
          if (!task.band.sees(query, j)) continue;
          const std::int64_t row = j * of.shape.kv_heads + head / of.shape.group();
          const double* k = &data.k[static_cast<std::size_t>(row) * dim];
          double logit = 0, sum = 0;
          for (std::size_t d = 0; d < dim; ++d) {
            logit += scale * q[d] * k[d];
            sum += scale * std::abs(q[d] * k[d]);
          }
          second = std::max(second, std::min(first, logit));
          first = std::max(first, logit);
          size = std::max(size, sum);
        }
      }
      const bool precise = std::abs(first) > size / 16;  // of the logit, not only of its terms
      clear.push_back(precise && first - second > std::max(40.0, size * 0x1p-14));
    }
  }
  return clear;
}

/// Gradients are those of the clear rows alone.
inline void keep_gradients_of(const std::vector<bool>& clear, Case& of) {
  Vector& dout = of.documents.at(0).dout;
  const auto dim = static_cast<std::size_t>(of.shape.head_dim);
  for (std::size_t at = 0; at < dout.size(); ++at) {
    if (!clear[at / dim]) dout[at] = 0;
  }
}

/// Expects out and lse of the clear rows, which are most.
inline void expect_clear_rows(const DocumentResult& got, const DocumentResult& expected,
                              const std::vector<bool>& clear, const Bounds& bounds) {
  const auto dim = got.out.size() / clear.size();
  Vector out, wanted;
  for (std::size_t row = 0; row < clear.size(); ++row) {
    if (!clear[row]) continue;
    const auto begin = static_cast<std::ptrdiff_t>(row * dim);
    const auto end = begin + static_cast<std::ptrdiff_t>(dim);
    out.insert(out.end(), got.out.begin() + begin, got.out.begin() + end);
    wanted.insert(wanted.end(), expected.out.begin() + begin, expected.out.begin() + end);
    ASSERT_LE(std::abs(got.lse[row] / expected.lse[row] - 1), 0x1p-16) << "row " << row;
  }
  EXPECT_GE(out.size(), got.out.size() / 2);
  EXPECT_LE(relative_difference(out, wanted), bounds.out);
}

/// For every factor, and shapes in turn: expect(case, its clear rows, what it must give), in random
/// tasks.
template <typename Expect>
void for_each_huge_case(const std::vector<AttentionShape>& shapes, std::int64_t length,
                        const Expect& expect) {
  std::mt19937_64 random(31);
  for (std::size_t n = 0; n < std::size(kHugeFactors); n += kSanitized ? 3 : 1) {
    const double factor = kHugeFactors[n];
    const AttentionShape& shape = shapes[n % shapes.size()];
    SCOPED_TRACE("head_dim " + std::to_string(shape.head_dim) + ", queries times " +
                 std::to_string(factor));
    Case of = make_case({shape, 0, {length}, true, 0, 0}, random);
    for (double& x : of.documents[0].q) x *= factor;
    round_to_bfloat16(of);
    const std::vector<bool> clear = clear_rows(of);
    keep_gradients_of(clear, of);
    expect(of, clear, reference(of)[0]);
  }
}

/// A forward pass alone: where the other one is slow, or not exact for such logits.
inline Kernels<bfloat16> forward_only(Kernels<bfloat16> by) {
  by.backward = [](const auto&...) {};
  return by;
}

/// Query i sees keys up to i; those before 100 have logits of -inf, an overflow.
inline Case overflowing_case(const AttentionShape& shape) {
  std::mt19937_64 random(32);
  Case of = rounded_case({shape, 0, {150}, false, 0, 0}, random);
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  for (double& x : of.documents[0].q) x = 0x1p100;
  for (std::size_t at = 0; at < 100 * dim; ++at) of.documents[0].k[at] = -0x1p100;
  for (std::size_t at = 100 * dim; at < 101 * dim; ++at) of.documents[0].k[at] = 0x1p-100;
  for (std::size_t at = 101 * dim; at < 150 * dim; ++at) of.documents[0].k[at] = -0x1p-20;
  return of;
}

/// Rows whose logits are all -inf have no softmax; others lose nothing by some that are.
inline void expect_overflow_shows(const DocumentResult& got, const Case& of, const Bounds& bounds) {
  const auto dim = static_cast<std::ptrdiff_t>(of.shape.head_dim);
  const Vector& v = of.documents[0].v;
  const Vector value(v.begin() + 100 * dim, v.begin() + 101 * dim);
  for (std::ptrdiff_t row = 0; row < 150; ++row) {
    SCOPED_TRACE("row " + std::to_string(row));
    const Vector out(got.out.begin() + row * dim, got.out.begin() + (row + 1) * dim);
    if (row < 100) {
      ASSERT_TRUE(std::isnan(got.lse[static_cast<std::size_t>(row)]) && std::isnan(out[0]));
    } else {
      ASSERT_LE(relative_difference(out, value), bounds.out);
    }
  }
}

}  // namespace cadenza::testing
