// SPDX-License-Identifier: Apache-2.0
// What the library behind the one matrix product provides: products without empty dimensions.
#pragma once

#include <cstdint>

#include "cadenza/kernels/matmul.hpp"

namespace cadenza::kernels::portable {

/// As matmul, with m, n and k at least 1.
void multiply(Transpose a_op, Transpose b_op, std::int64_t m, std::int64_t n, std::int64_t k,
              float alpha, const float* a, const float* b, float beta, float* c);
void multiply(Transpose a_op, Transpose b_op, std::int64_t m, std::int64_t n, std::int64_t k,
              double alpha, const double* a, const double* b, double beta, double* c);

}  // namespace cadenza::kernels::portable
