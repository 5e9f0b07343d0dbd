// SPDX-License-Identifier: Apache-2.0
// Root-mean-square normalisation, fused with the preceding addition to the residual stream, and the
// memory of the sums in a fixed order (vector_loops.hpp) of the loss and the gradient norm.
#include <algorithm>
#include <type_traits>

#include "cadenza/model/layers.hpp"
#include "model/vector_loops.hpp"

namespace cadenza::model {

namespace {

template <typename Real, typename T>
struct Norm {
  using Sum = Accumulator<Real>;
  const T* residual;
  T* x;
  const Real* weight;
  std::int64_t width;
  double eps;
  Real* y;
  Sum* rstd;

  KOKKOS_FUNCTION void operator()(const Team& team, std::int64_t row) const {
    T* in = x + row * width;
    const double mean = squares(team, in, row) / static_cast<double>(width);
    const Sum inverse = static_cast<Sum>(1.0 / Kokkos::sqrt(mean + eps));
    Kokkos::single(Kokkos::PerTeam(team), [&]() { rstd[row] = inverse; });
    Real* out = y + row * width;
    const Real* scale = weight;
    for_columns(team, width, [=](const std::int64_t c) {
      narrow(widen(in[c]) * inverse * widen(scale[c]), out[c]);
    });
  }

  KOKKOS_FUNCTION double squares(const Team& team, T* in, std::int64_t row) const {
    if (residual == nullptr) {
      return sum_columns(team, width, [=](const std::int64_t c) {
        return static_cast<double>(widen(in[c])) * static_cast<double>(widen(in[c]));
      });
    }
    const T* add = residual + row * width;
    return sum_columns(team, width, [=](const std::int64_t c) {
      narrow(widen(in[c]) + widen(add[c]), in[c]);
      const Sum sum = widen(in[c]);
      return static_cast<double>(sum) * static_cast<double>(sum);
    });
  }
};

/// Handles rows [block * block_rows, ...): dx = residual + rstd * (dy w - x rstd^2 mean(dy w x)),
/// with the mean over the width, and the block's sum of dy x rstd.
template <typename Real, typename T>
struct NormGradient {
  using Sum = Accumulator<Real>;
  NormInputs<Real> in;
  NormGradients<Real> out;
  const T* of_x;
  const T* residual;
  T* of_dx;
  std::int64_t rows;
  std::int64_t width;
  std::int64_t block_rows;

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    sum_row_block(team, rows, block_rows, width, out.partials,
                  [&](const std::int64_t row, Sum* partial) {
                    add_row(team, row, partial);
                    if (out.y != nullptr) normalise(team, row);
                  });
  }

  KOKKOS_FUNCTION void add_row(const Team& team, std::int64_t row, Sum* partial) const {
    const T* x = of_x + row * width;
    const Sum* dy = in.dy + row * width;
    const Real* weight = in.weight;
    const double dot = sum_columns(team, width, [=](const std::int64_t c) {
      return static_cast<double>(dy[c] * widen(weight[c])) * static_cast<double>(widen(x[c]));
    });
    const Sum inverse = in.rstd[row];
    const Sum scale = static_cast<Sum>(dot / static_cast<double>(width)) * inverse * inverse;
    T* dx = of_dx + row * width;
    const auto gradient = [=](const std::int64_t c) {
      const Sum value = widen(x[c]);
      partial[c] += dy[c] * value * inverse;
      return inverse * (dy[c] * widen(weight[c]) - value * scale);
    };
    if (residual == nullptr) {
      for_columns(team, width, [=](const std::int64_t c) { narrow(gradient(c), dx[c]); });
    } else {
      const T* before = residual + row * width;
      for_columns(team, width,
                  [=](const std::int64_t c) { narrow(widen(before[c]) + gradient(c), dx[c]); });
    }
    if constexpr (!std::is_same_v<Real, T>) {
      Real* rounded = out.rounded + row * width;
      for_columns(team, width, [=](const std::int64_t c) { narrow(dx[c], rounded[c]); });
    }
  }

  KOKKOS_FUNCTION void normalise(const Team& team, std::int64_t row) const {
    const T* x = of_x + row * width;
    const Real* weight = in.weight;
    const Sum inverse = in.rstd[row];
    Real* y = out.y + row * width;
    for_columns(team, width, [=](const std::int64_t c) {
      narrow(widen(x[c]) * inverse * widen(weight[c]), y[c]);
    });
  }
};

}  // namespace

template <typename Real>
void rms_norm(Residual<Real> residual, Residual<Real> x, const Real* weight, std::int64_t rows,
              std::int64_t width, double eps, Real* y, Accumulator<Real>* rstd) {
  x.visit([&]<typename T>(T* to) {
    for_rows("rms_norm", rows,
             Norm<Real, T>{residual.template as<T>(), to, weight, width, eps, y, rstd});
  });
}

template <typename Real>
void rms_norm_gradient(const NormInputs<Real>& in, const NormGradients<Real>& out,
                       std::int64_t rows, std::int64_t width) {
  const std::int64_t per_block = block_rows(rows);
  in.x.visit([&]<typename T>(const T* x) {
    launch("rms_norm_gradient", teams(rows, per_block),
           NormGradient<Real, T>{in, out, x, out.residual.template as<T>(), out.dx.template as<T>(),
                                 rows, width, per_block});
  });
  add_row_blocks<Accumulator<Real>>("rms_norm_dweight", rows, width, out.partials, out.dweight);
}

#define CADENZA_INSTANTIATE(Real)                                                                 \
  template void rms_norm(Residual<Real>, Residual<Real>, const Real*, std::int64_t, std::int64_t, \
                         double, Real*, Accumulator<Real>*);                                      \
  template void rms_norm_gradient(const NormInputs<Real>&, const NormGradients<Real>&,            \
                                  std::int64_t, std::int64_t);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

namespace {

struct BlockSums {
  Array<double> device;
  HostArray<double> host;
};

const BlockSums& kept_sums() {
  static BlockSums kept = [] {
    Kokkos::push_finalize_hook([] { kept = {}; });
    const Array<double> sums("block_sums", static_cast<std::size_t>(kMostBlocks));
    return BlockSums{sums, Kokkos::create_mirror_view(sums)};
  }();
  return kept;
}

}  // namespace

double* block_sums() {
  return kept_sums().device.data();
}

double add_block_sums(std::int64_t blocks) {
  const auto& [device, host] = kept_sums();
  copy_and_wait(host, device);
  double sum = 0;
  for (std::int64_t block = 0; block < blocks; ++block) sum += host(block);
  return sum;
}

}  // namespace cadenza::model
