// SPDX-License-Identifier: Apache-2.0
// Matrix products on NVIDIA devices: cuBLAS on Kokkos' stream.
#include <Kokkos_Core.hpp>

#ifdef KOKKOS_ENABLE_CUDA

#include <cublas_v2.h>

#include "../device/check.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/kernels/device.hpp"
#include "multiply.hpp"

namespace cadenza::kernels {
namespace {

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    fail(ExitCode::internal, "{} failed: {}", call, cublasGetStatusString(status));
  }
}

/// Allocates with the alignment that cuBLAS needs, which Kokkos' arrays lack.
void* allocate_workspace() {
  void* memory = nullptr;
  device::check(cudaMalloc(&memory, kProductWorkspace), "memory of cuBLAS");
  return memory;
}

/// Returns the process's only handle, on Kokkos' only stream; destroyed before Kokkos ends, while
/// the device still exists.
cublasHandle_t handle() {
  static cublasHandle_t instance = [] {
    cublasHandle_t made = nullptr;
    check(cublasCreate(&made), "cublasCreate");
    check(cublasSetStream(made, Device().cuda_stream()), "cublasSetStream");
    // Split sums stay in float32 until the last part is added.
    constexpr int kMode = CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    check(cublasSetMathMode(made, static_cast<cublasMath_t>(kMode)), "cublasSetMathMode");
    void* workspace = allocate_workspace();  // after the stream, which resets it
    check(cublasSetWorkspace(made, workspace, kProductWorkspace), "cublasSetWorkspace");
    Kokkos::push_finalize_hook([made, workspace] {
      cublasDestroy(made);
      cudaFree(workspace);
    });
    return made;
  }();
  return instance;
}

/// Type in which numbers are stored and added up.
template <typename Real>
constexpr cudaDataType kType = CUDA_R_32F;
template <>
constexpr cudaDataType kType<double> = CUDA_R_64F;
template <>
constexpr cudaDataType kType<bfloat16> = CUDA_R_16BF;
template <typename Real>
constexpr cublasComputeType_t kSums = CUBLAS_COMPUTE_32F;
template <>
constexpr cublasComputeType_t kSums<double> = CUBLAS_COMPUTE_64F;

/// Computes a product. cuBLAS is column-major: a row-major C is its transpose, op(B)^T op(A)^T.
template <typename In, typename Out>
void multiply_transposed(const ProductShape& shape, Accumulator<In> alpha, const In* a, const In* b,
                         Accumulator<In> beta, Out* c) {
  const auto [a_op, b_op, m, n, k] = shape;
  const auto op = [](Transpose t) { return t == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N; };
  check(
      cublasGemmEx_64(handle(), op(b_op), op(a_op), n, m, k, &alpha, b, kType<In>,
                      b_op == Transpose::yes ? k : n, a, kType<In>, a_op == Transpose::yes ? m : k,
                      &beta, c, kType<Out>, n, kSums<In>, CUBLAS_GEMM_DEFAULT),
      "cublasGemmEx");
}

}  // namespace

void multiply(const ProductShape& shape, float alpha, const float* a, const float* b, float beta,
              float* c) {
  multiply_transposed(shape, alpha, a, b, beta, c);
}
void multiply(const ProductShape& shape, double alpha, const double* a, const double* b,
              double beta, double* c) {
  multiply_transposed(shape, alpha, a, b, beta, c);
}
void multiply(const ProductShape& shape, float alpha, const bfloat16* a, const bfloat16* b,
              float beta, float* c) {
  multiply_transposed(shape, alpha, a, b, beta, c);
}
void multiply(const ProductShape& shape, float alpha, const bfloat16* a, const bfloat16* b,
              float beta, bfloat16* c) {
  multiply_transposed(shape, alpha, a, b, beta, c);
}

}  // namespace cadenza::kernels

#endif
