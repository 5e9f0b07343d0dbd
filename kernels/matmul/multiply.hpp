// SPDX-License-Identifier: Apache-2.0
// Interface to the libraries behind the matrix product: products without empty dimensions.
#pragma once

#include <cstdint>

#include "cadenza/base/memory.hpp"
#include "cadenza/kernels/bfloat16.hpp"
#include "cadenza/kernels/matmul.hpp"

namespace cadenza::kernels {

/// Shape of op(A) [m, k] times op(B) [k, n], row-major and contiguous.
struct ProductShape {
  Transpose a_op = Transpose::no;
  Transpose b_op = Transpose::no;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  auto operator<=>(const ProductShape&) const = default;
};

/// Multiplies like matmul, with m, n and k at least 1.
void multiply(const ProductShape& shape, float alpha, const float* a, const float* b, float beta,
              float* c);
void multiply(const ProductShape& shape, double alpha, const double* a, const double* b,
              double beta, double* c);
void multiply(const ProductShape& shape, float alpha, const bfloat16* a, const bfloat16* b,
              float beta, float* c);
void multiply(const ProductShape& shape, float alpha, const bfloat16* a, const bfloat16* b,
              float beta, bfloat16* c);

/// Multiplies factors after widening them to float32, some rows at a time, so that scratch does not
/// grow with the rows of a microbatch. Sums are float32, in which products of bfloat16 are exact.
void multiply_widened(const ProductShape& shape, float alpha, const bfloat16* a, const bfloat16* b,
                      float beta, float* c);
void multiply_widened(const ProductShape& shape, float alpha, const bfloat16* a, const bfloat16* b,
                      float beta, bfloat16* c);

}  // namespace cadenza::kernels
