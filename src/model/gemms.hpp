// SPDX-License-Identifier: Apache-2.0
// The matrix products of a linear layer with weight W [out, in] over `rows` rows.
#pragma once

#include <cstdint>

#include "cadenza/kernels/matmul.hpp"

namespace cadenza::model {

/// Computes y [rows, out] = x [rows, in] W^T.
template <typename Real, typename Out>
void project(const Real* x, const Real* weight, std::int64_t rows, std::int64_t in,
             std::int64_t out, Out* y) {
  using kernels::Transpose;
  kernels::matmul<Real>(Transpose::no, Transpose::yes, rows, out, in, Accumulator<Real>(1), x,
                        weight, Accumulator<Real>(0), y);
}

/// Computes dx [rows, in] = dy [rows, out] W.
template <typename Real, typename Out>
void input_gradient_gemm(const Real* dy, const Real* weight, std::int64_t rows, std::int64_t in,
                         std::int64_t out, Out* dx) {
  using kernels::Transpose;
  kernels::matmul<Real>(Transpose::no, Transpose::no, rows, in, out, Accumulator<Real>(1), dy,
                        weight, Accumulator<Real>(0), dx);
}

/// Computes dW += dy^T x.
template <typename Real>
void weight_gradient(const Real* x, const Real* dy, std::int64_t rows, std::int64_t in,
                     std::int64_t out, Accumulator<Real>* gradient) {
  using kernels::Transpose;
  kernels::matmul<Real>(Transpose::yes, Transpose::no, out, in, rows, Accumulator<Real>(1), dy, x,
                        Accumulator<Real>(1), gradient);
}

}  // namespace cadenza::model
