// SPDX-License-Identifier: Apache-2.0
// Norms of the heads of Q and K, forward and backward.
#include "cadenza/model/layers.hpp"
#include "model/vector_loops.hpp"

namespace cadenza::model {
namespace {

/// 1 / the root mean square of a head.
template <typename Real>
KOKKOS_INLINE_FUNCTION Accumulator<Real> head_rstd(const Team& team, const Real* x,
                                                   std::int64_t head_dim, double eps) {
  const double squares = sum_columns(team, head_dim, [=](const std::int64_t c) {
    return static_cast<double>(widen(x[c])) * static_cast<double>(widen(x[c]));
  });
  return static_cast<Accumulator<Real>>(
      1.0 / Kokkos::sqrt(squares / static_cast<double>(head_dim) + eps));
}

}  // namespace

template <typename Real>
void head_norm(const Real* x, const Real* weight, std::int64_t heads, std::int64_t head_dim,
               double eps, Real* y) {
  for_rows(
      "head_norm", heads, KOKKOS_LAMBDA(const Team& team, const std::int64_t head) {
        const Real* from = x + head * head_dim;
        Real* to = y + head * head_dim;
        const Accumulator<Real> inverse = head_rstd(team, from, head_dim, eps);
        for_columns(team, head_dim, [=](const std::int64_t c) {
          narrow(widen(from[c]) * inverse * widen(weight[c]), to[c]);
        });
      });
}

namespace {

/// Handles rows [block * block_rows, ...): of each head of Q and K, dx = rstd (dy w - x rstd^2
/// mean(dy w x)) in the place of dy, and the block's sum of dy x rstd.
template <typename Real>
struct HeadNormGradient {
  using Sum = Accumulator<Real>;
  HeadNormInputs<Real> in;
  AttentionShape shape;
  double eps;
  Real* joined;
  Sum* partials;
  std::int64_t rows;
  std::int64_t block_rows;

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    sum_row_block(team, rows, block_rows, 2 * shape.head_dim, partials,
                  [&](const std::int64_t row, Sum* partial) { add_row(team, row, partial); });
  }

  KOKKOS_FUNCTION void add_row(const Team& team, std::int64_t row, Sum* partial) const {
    Real* dy = joined + row * (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
    const Real* q = in.q + row * shape.heads * shape.head_dim;
    const Real* k = in.k + row * shape.kv_heads * shape.head_dim;
    for (int head = 0; head < shape.heads; ++head) {
      add_head(team, q + head * shape.head_dim, in.weights, dy, partial);
      dy += shape.head_dim;
    }
    for (int head = 0; head < shape.kv_heads; ++head) {
      add_head(team, k + head * shape.head_dim, in.weights + shape.head_dim, dy,
               partial + shape.head_dim);
      dy += shape.head_dim;
    }
  }

  KOKKOS_FUNCTION void add_head(const Team& team, const Real* x, const Real* weight, Real* dy,
                                Sum* partial) const {
    const std::int64_t head_dim = shape.head_dim;
    const Sum inverse = head_rstd(team, x, head_dim, eps);
    const double dot = sum_columns(team, head_dim, [=](const std::int64_t c) {
      return static_cast<double>(widen(dy[c]) * widen(weight[c])) *
             static_cast<double>(widen(x[c]));
    });
    const Sum scale = static_cast<Sum>(dot / static_cast<double>(head_dim)) * inverse * inverse;
    for_columns(team, head_dim, [=](const std::int64_t c) {
      const Sum value = widen(x[c]);
      const Sum gradient = widen(dy[c]);
      partial[c] += gradient * value * inverse;
      narrow(inverse * (gradient * widen(weight[c]) - value * scale), dy[c]);
    });
  }
};

}  // namespace

template <typename Real>
void head_norm_gradient(const HeadNormInputs<Real>& in, const AttentionShape& shape,
                        std::int64_t rows, double eps, Real* joined, Accumulator<Real>* dweights,
                        Accumulator<Real>* partials) {
  const std::int64_t per_block = block_rows(rows);
  launch("head_norm_gradient", teams(rows, per_block),
         HeadNormGradient<Real>{in, shape, eps, joined, partials, rows, per_block});
  add_row_blocks<Accumulator<Real>>("head_norm_dweights", rows, 2 * shape.head_dim, partials,
                                    dweights);
}

#define CADENZA_INSTANTIATE(Real)                                                               \
  template void head_norm(const Real*, const Real*, std::int64_t, std::int64_t, double, Real*); \
  template void head_norm_gradient(const HeadNormInputs<Real>&, const AttentionShape&,          \
                                   std::int64_t, double, Real*, Accumulator<Real>*,             \
                                   Accumulator<Real>*);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::model
