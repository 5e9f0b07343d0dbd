// SPDX-License-Identifier: Apache-2.0
// The one matrix product of the program. Row-major; float through oneDNN on the host and cuBLAS on
// devices, double through a portable Kokkos kernel (used by tests and run.dtype float64).
#pragma once

#include <cstdint>

namespace cadenza::kernels {

enum class Transpose : bool { no, yes };

/// C = alpha * op(A) * op(B) + beta * C, with op(A) [m, k], op(B) [k, n], C [m, n], all row-major
/// and contiguous: A is [m, k] or, transposed, [k, m]; B is [k, n] or [n, k]. Device pointers. beta
/// = 0 does not read C.
/// @throws Error(numerics) when the library refuses the call.
template <typename Real>
void matmul(Transpose a_op, Transpose b_op, std::int64_t m, std::int64_t n, std::int64_t k,
            Real alpha, const Real* a, const Real* b, Real beta, Real* c);

}  // namespace cadenza::kernels
