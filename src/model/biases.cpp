// SPDX-License-Identifier: Apache-2.0
// Biases of Q, K and V, forward and backward.
#include "cadenza/model/layers.hpp"
#include "model/vector_loops.hpp"

namespace cadenza::model {

template <typename Real>
void add_bias(const Real* bias, std::int64_t rows, std::int64_t width, Real* y) {
  for_rows(
      "add_bias", rows, KOKKOS_LAMBDA(const Team& team, const std::int64_t row) {
        Real* to = y + row * width;
        for_columns(team, width,
                    [=](const std::int64_t c) { narrow(widen(to[c]) + widen(bias[c]), to[c]); });
      });
}

namespace {

/// Sums rows [block * block_rows, ...).
template <typename Real>
struct BiasGradient {
  using Sum = Accumulator<Real>;
  const Real* dy;
  Sum* partials;
  std::int64_t rows;
  std::int64_t width;
  std::int64_t block_rows;

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    sum_row_block(
        team, rows, block_rows, width, partials, [&](const std::int64_t row, Sum* partial) {
          const Real* from = dy + row * width;
          for_columns(team, width, [=](const std::int64_t c) { partial[c] += widen(from[c]); });
        });
  }
};

}  // namespace

template <typename Real>
void bias_gradient(const Real* dy, std::int64_t rows, std::int64_t width, Accumulator<Real>* dbias,
                   Accumulator<Real>* partials) {
  const std::int64_t per_block = block_rows(rows);
  launch("bias_gradient", teams(rows, per_block),
         BiasGradient<Real>{dy, partials, rows, width, per_block});
  add_row_blocks<Accumulator<Real>>("add_bias_gradient", rows, width, partials, dbias);
}

#define CADENZA_INSTANTIATE(Real)                                                          \
  template void add_bias(const Real*, std::int64_t, std::int64_t, Real*);                  \
  template void bias_gradient(const Real*, std::int64_t, std::int64_t, Accumulator<Real>*, \
                              Accumulator<Real>*);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::model
