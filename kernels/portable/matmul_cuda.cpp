// SPDX-License-Identifier: Apache-2.0
// Matrix products on NVIDIA devices: cuBLAS on Kokkos' stream.
#include <Kokkos_Core.hpp>

#ifdef KOKKOS_ENABLE_CUDA

#include <cublas_v2.h>

#include "cadenza/base/error.hpp"
#include "cadenza/kernels/device.hpp"
#include "multiply.hpp"

namespace cadenza::kernels::portable {
namespace {

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    fail(ExitCode::numerics, "{} failed: {}", call, cublasGetStatusString(status));
  }
}

/// The process's one handle; destroyed before Kokkos ends, while the device still exists.
cublasHandle_t handle() {
  static cublasHandle_t instance = [] {
    cublasHandle_t made = nullptr;
    check(cublasCreate(&made), "cublasCreate");
    Kokkos::push_finalize_hook([made] { cublasDestroy(made); });
    return made;
  }();
  check(cublasSetStream(instance, Device().cuda_stream()), "cublasSetStream");
  return instance;
}

cublasStatus_t gemm(cublasOperation_t first_op, cublasOperation_t second_op, std::int64_t rows,
                    std::int64_t columns, std::int64_t depth, const float* alpha,
                    const float* first, std::int64_t first_pitch, const float* second,
                    std::int64_t second_pitch, const float* beta, float* c) {
  return cublasSgemm_64(handle(), first_op, second_op, rows, columns, depth, alpha, first,
                        first_pitch, second, second_pitch, beta, c, rows);
}

cublasStatus_t gemm(cublasOperation_t first_op, cublasOperation_t second_op, std::int64_t rows,
                    std::int64_t columns, std::int64_t depth, const double* alpha,
                    const double* first, std::int64_t first_pitch, const double* second,
                    std::int64_t second_pitch, const double* beta, double* c) {
  return cublasDgemm_64(handle(), first_op, second_op, rows, columns, depth, alpha, first,
                        first_pitch, second, second_pitch, beta, c, rows);
}

/// cuBLAS reads matrices column by column: a row-major C is its transpose, op(B)^T op(A)^T.
template <typename Real>
void multiply_transposed(Transpose a_op, Transpose b_op, std::int64_t m, std::int64_t n,
                         std::int64_t k, Real alpha, const Real* a, const Real* b, Real beta,
                         Real* c) {
  const auto op = [](Transpose t) { return t == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N; };
  check(gemm(op(b_op), op(a_op), n, m, k, &alpha, b, b_op == Transpose::yes ? k : n, a,
             a_op == Transpose::yes ? m : k, &beta, c),
        "cublasGemm");
}

}  // namespace

void multiply(Transpose a_op, Transpose b_op, std::int64_t m, std::int64_t n, std::int64_t k,
              float alpha, const float* a, const float* b, float beta, float* c) {
  multiply_transposed(a_op, b_op, m, n, k, alpha, a, b, beta, c);
}

void multiply(Transpose a_op, Transpose b_op, std::int64_t m, std::int64_t n, std::int64_t k,
              double alpha, const double* a, const double* b, double beta, double* c) {
  multiply_transposed(a_op, b_op, m, n, k, alpha, a, b, beta, c);
}

}  // namespace cadenza::kernels::portable

#endif
