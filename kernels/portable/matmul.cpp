// SPDX-License-Identifier: Apache-2.0
#include "cadenza/kernels/matmul.hpp"

#include "cadenza/kernels/device.hpp"
#include "multiply.hpp"

namespace cadenza::kernels {
namespace {

/// C = beta * C, without reading C where beta is 0.
template <typename Real>
struct Scale {
  Real* c;
  Real beta;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { c[i] = beta == 0 ? 0 : beta * c[i]; }
};

}  // namespace

template <typename Real>
void matmul(Transpose a_op, Transpose b_op, std::int64_t m, std::int64_t n, std::int64_t k,
            Real alpha, const Real* a, const Real* b, Real beta, Real* c) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    Kokkos::parallel_for(
        "matmul_scale",
        Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>>(std::int64_t{0}, m * n),
        Scale<Real>{c, beta});
    return;
  }
  portable::multiply(a_op, b_op, m, n, k, alpha, a, b, beta, c);
}

template void matmul<float>(Transpose, Transpose, std::int64_t, std::int64_t, std::int64_t, float,
                            const float*, const float*, float, float*);
template void matmul<double>(Transpose, Transpose, std::int64_t, std::int64_t, std::int64_t, double,
                             const double*, const double*, double, double*);

}  // namespace cadenza::kernels
