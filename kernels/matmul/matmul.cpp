// SPDX-License-Identifier: Apache-2.0
#include "cadenza/kernels/matmul.hpp"

#include "cadenza/kernels/device.hpp"
#include "multiply.hpp"

namespace cadenza::kernels {
namespace {

/// Computes C = beta * C, without reading C if beta is 0.
template <typename Out>
struct Scale {
  using Sum = Accumulator<Out>;
  Out* c;
  Sum beta;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    c[i] = static_cast<Out>(beta == 0 ? Sum(0) : beta * static_cast<Sum>(c[i]));
  }
};

}  // namespace

template <typename In, typename Out>
void matmul(Transpose a_op, Transpose b_op, std::int64_t m, std::int64_t n, std::int64_t k,
            Accumulator<In> alpha, const In* a, const In* b, Accumulator<In> beta, Out* c) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    launch("matmul_scale",
           Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>>(std::int64_t{0}, m * n),
           Scale<Out>{c, beta});
    return;
  }
  enqueue([=] { multiply({a_op, b_op, m, n, k}, alpha, a, b, beta, c); });
}

std::int64_t product_workspace_bytes() {
  return kDeviceIsCuda ? kProductWorkspace : 0;
}

#define CADENZA_INSTANTIATE(In, Out)                                                            \
  template void matmul<In, Out>(Transpose, Transpose, std::int64_t, std::int64_t, std::int64_t, \
                                Accumulator<In>, const In*, const In*, Accumulator<In>, Out*);
CADENZA_INSTANTIATE(float, float)
CADENZA_INSTANTIATE(double, double)
CADENZA_INSTANTIATE(bfloat16, float)
CADENZA_INSTANTIATE(bfloat16, bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::kernels
