// SPDX-License-Identifier: Apache-2.0
// The matrix product of the program. Row-major; float and bfloat16 through oneDNN on the host and
// cuBLAS on devices, double through a portable Kokkos kernel (used by tests and run.dtype float64).
#pragma once

#include <cstdint>

#include "cadenza/kernels/bfloat16.hpp"

namespace cadenza::kernels {

enum class Transpose : bool { no, yes };

/// Computes C = alpha * op(A) * op(B) + beta * C, with op(A) [m, k], op(B) [k, n], C [m, n], all
/// row-major and contiguous: A is [m, k] or, transposed, [k, m]; B is [k, n] or [n, k]. Device
/// pointers. beta = 0 does not read C. In is the type of factors, Out of C: (float, float),
/// (double, double), (bfloat16, float) or (bfloat16, bfloat16); sums are in Accumulator<In>.
/// Repeated calls of a shape allocate nothing. Call it from one host thread at a time.
/// @throws Error(numerics) if the library refuses the call.
template <typename In, typename Out>
void matmul(Transpose a_op, Transpose b_op, std::int64_t m, std::int64_t n, std::int64_t k,
            Accumulator<In> alpha, const In* a, const In* b, Accumulator<In> beta, Out* c);

/// Device memory in which the library works: allocated once per process, with the first product.
/// None on the host, whose libraries use host memory.
std::int64_t product_workspace_bytes();

}  // namespace cadenza::kernels
