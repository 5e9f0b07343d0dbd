// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/layers.hpp"
#include "model/vector_loops.hpp"

namespace cadenza::model {

template <typename Real>
void swiglu(const Real* gate_up, std::int64_t rows, std::int64_t width, Real* out) {
  using Sum = Accumulator<Real>;
  for_rows(
      "swiglu", rows, KOKKOS_LAMBDA(const Team& team, const std::int64_t row) {
        const Real* gate = gate_up + row * 2 * width;
        const Real* up = gate + width;
        Real* to = out + row * width;
        for_columns(team, width, [=](const std::int64_t c) {
          const Sum g = widen(gate[c]);
          narrow(g / (Sum(1) + exponential(-g)) * widen(up[c]), to[c]);
        });
      });
}

template <typename Real>
void swiglu_gradient(Real* gate_up, std::int64_t rows, std::int64_t width, Real* hidden) {
  using Sum = Accumulator<Real>;
  for_rows(
      "swiglu_gradient", rows, KOKKOS_LAMBDA(const Team& team, const std::int64_t row) {
        Real* gate = gate_up + row * 2 * width;
        Real* up = gate + width;
        Real* both = hidden + row * width;
        for_columns(team, width, [=](const std::int64_t c) {
          const Sum g = widen(gate[c]);
          const Sum u = widen(up[c]);
          const Sum dout = widen(both[c]);
          const Sum sigmoid = Sum(1) / (Sum(1) + exponential(-g));
          const Sum silu = g * sigmoid;
          narrow(silu * u, both[c]);
          narrow(dout * u * (sigmoid + silu * (Sum(1) - sigmoid)), gate[c]);
          narrow(dout * silu, up[c]);
        });
      });
}

#define CADENZA_INSTANTIATE(Real)                                       \
  template void swiglu(const Real*, std::int64_t, std::int64_t, Real*); \
  template void swiglu_gradient(Real*, std::int64_t, std::int64_t, Real*);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::model
