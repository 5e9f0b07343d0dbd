// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/layers.hpp"

#include "cadenza/kernels/device.hpp"

namespace cadenza::model {
namespace {

using Team = Kokkos::TeamPolicy<Device>::member_type;

/// Columns that one work item of a column-wise reduction owns: a cache line of floats.
constexpr std::int64_t kColumnBlock = 16;

inline Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>> over(std::int64_t count) {
  return {0, count};
}
inline Kokkos::TeamPolicy<Device> teams(std::int64_t count) {
  return {static_cast<int>(count), Kokkos::AUTO};
}

}  // namespace

template <typename Real>
void rms_norm(const Real* x, const Real* weight, std::int64_t rows, std::int64_t width, double eps,
              Real* y, Real* rstd) {
  Kokkos::parallel_for(
      "rms_norm", teams(rows), KOKKOS_LAMBDA(const Team& team) {
        const std::int64_t row = team.league_rank();
        const Real* in = x + row * width;
        Real* out = y + row * width;
        double squares = 0;
        Kokkos::parallel_reduce(
            Kokkos::TeamThreadRange(team, width),
            [=](const std::int64_t c, double& sum) {
              sum += static_cast<double>(in[c]) * static_cast<double>(in[c]);
            },
            squares);
        const Real inverse =
            static_cast<Real>(1.0 / Kokkos::sqrt(squares / static_cast<double>(width) + eps));
        Kokkos::single(Kokkos::PerTeam(team), [=]() { rstd[row] = inverse; });
        Kokkos::parallel_for(Kokkos::TeamThreadRange(team, width),
                             [=](const std::int64_t c) { out[c] = in[c] * inverse * weight[c]; });
      });
}

template <typename Real>
void rms_norm_gradient(const Real* dy, const Real* x, const Real* weight, const Real* rstd,
                       std::int64_t rows, std::int64_t width, Real* dx, Real* dweight) {
  // dx = rstd * (dy w - x rstd^2 mean(dy w x)); the mean runs over the width.
  Kokkos::parallel_for(
      "rms_norm_dx", teams(rows), KOKKOS_LAMBDA(const Team& team) {
        const std::int64_t row = team.league_rank();
        const Real* in = x + row * width;
        const Real* grad = dy + row * width;
        Real* out = dx + row * width;
        double dot = 0;
        Kokkos::parallel_reduce(
            Kokkos::TeamThreadRange(team, width),
            [=](const std::int64_t c, double& sum) {
              sum += static_cast<double>(grad[c] * weight[c]) * static_cast<double>(in[c]);
            },
            dot);
        const Real inverse = rstd[row];
        const Real scale = static_cast<Real>(dot / static_cast<double>(width)) * inverse * inverse;
        Kokkos::parallel_for(Kokkos::TeamThreadRange(team, width), [=](const std::int64_t c) {
          out[c] += inverse * (grad[c] * weight[c] - in[c] * scale);
        });
      });
  const std::int64_t blocks = (width + kColumnBlock - 1) / kColumnBlock;
  Kokkos::parallel_for(
      "rms_norm_dweight", over(blocks), KOKKOS_LAMBDA(const std::int64_t block) {
        const std::int64_t first = block * kColumnBlock;
        const std::int64_t last = first + kColumnBlock < width ? first + kColumnBlock : width;
        double sums[kColumnBlock] = {};
        for (std::int64_t row = 0; row < rows; ++row) {
          for (std::int64_t c = first; c < last; ++c) {
            sums[c - first] += static_cast<double>(dy[row * width + c] * x[row * width + c]) *
                               static_cast<double>(rstd[row]);
          }
        }
        for (std::int64_t c = first; c < last; ++c) {
          dweight[c] += static_cast<Real>(sums[c - first]);
        }
      });
}

template <typename Real>
void swiglu(const Real* gate, const Real* up, std::int64_t count, Real* out) {
  Kokkos::parallel_for(
      "swiglu", over(count), KOKKOS_LAMBDA(const std::int64_t i) {
        out[i] = gate[i] / (Real(1) + Kokkos::exp(-gate[i])) * up[i];
      });
}

template <typename Real>
void swiglu_gradient(const Real* dout, std::int64_t count, Real* gate, Real* up, Real* out) {
  Kokkos::parallel_for(
      "swiglu_gradient", over(count), KOKKOS_LAMBDA(const std::int64_t i) {
        const Real g = gate[i];
        const Real u = up[i];
        const Real sigmoid = Real(1) / (Real(1) + Kokkos::exp(-g));
        const Real silu = g * sigmoid;
        out[i] = silu * u;
        gate[i] = dout[i] * u * (sigmoid + silu * (Real(1) - sigmoid));
        up[i] = dout[i] * silu;
      });
}

template <typename Real>
void embed(const Real* table, const std::int32_t* tokens, std::int64_t rows, std::int64_t width,
           Real* x) {
  Kokkos::parallel_for(
      "embed", teams(rows), KOKKOS_LAMBDA(const Team& team) {
        const std::int64_t row = team.league_rank();
        const Real* source = table + tokens[row] * width;
        Kokkos::parallel_for(Kokkos::TeamThreadRange(team, width),
                             [=](const std::int64_t c) { x[row * width + c] = source[c]; });
      });
}

template <typename Real>
void embed_gradient(const Real* dx, const std::int32_t* tokens, std::int64_t rows,
                    std::int64_t width, Real* dtable) {
  // Many rows share a token, so work is split by columns: each item adds all rows in order.
  const std::int64_t blocks = (width + kColumnBlock - 1) / kColumnBlock;
  Kokkos::parallel_for(
      "embed_gradient", over(blocks), KOKKOS_LAMBDA(const std::int64_t block) {
        const std::int64_t first = block * kColumnBlock;
        const std::int64_t last = first + kColumnBlock < width ? first + kColumnBlock : width;
        for (std::int64_t row = 0; row < rows; ++row) {
          Real* target = dtable + tokens[row] * width;
          for (std::int64_t c = first; c < last; ++c) target[c] += dx[row * width + c];
        }
      });
}

template <typename Real>
double cross_entropy(Real* logits, const std::int32_t* targets, std::int64_t rows,
                     std::int64_t vocab, double scale) {
  double total = 0;
  Kokkos::parallel_reduce(
      "cross_entropy", teams(rows),
      KOKKOS_LAMBDA(const Team& team, double& loss) {
        const std::int64_t row = team.league_rank();
        Real* values = logits + row * vocab;
        const std::int32_t target = targets[row];
        if (target < 0) {
          Kokkos::parallel_for(Kokkos::TeamThreadRange(team, vocab),
                               [=](const std::int64_t v) { values[v] = Real(0); });
          return;
        }
        Real largest = 0;
        Kokkos::parallel_reduce(
            Kokkos::TeamThreadRange(team, vocab),
            [=](const std::int64_t v, Real& top) { top = values[v] > top ? values[v] : top; },
            Kokkos::Max<Real>(largest));
        const Real picked = values[target] - largest;
        team.team_barrier();
        double sum = 0;
        Kokkos::parallel_reduce(
            Kokkos::TeamThreadRange(team, vocab),
            [=](const std::int64_t v, double& part) {
              values[v] = Kokkos::exp(values[v] - largest);
              part += static_cast<double>(values[v]);
            },
            sum);
        const Real factor = static_cast<Real>(scale / sum);
        Kokkos::parallel_for(Kokkos::TeamThreadRange(team, vocab), [=](const std::int64_t v) {
          values[v] = values[v] * factor - (v == target ? static_cast<Real>(scale) : Real(0));
        });
        Kokkos::single(Kokkos::PerTeam(team),
                       [&]() { loss += Kokkos::log(sum) - static_cast<double>(picked); });
      },
      total);
  return total;
}

template <typename Real>
double sum_of_squares(const Real* values, std::int64_t count) {
  double total = 0;
  Kokkos::parallel_reduce(
      "sum_of_squares", over(count),
      KOKKOS_LAMBDA(const std::int64_t i, double& sum) {
        sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
      },
      total);
  return total;
}

#define CADENZA_INSTANTIATE(Real)                                                                \
  template void rms_norm(const Real*, const Real*, std::int64_t, std::int64_t, double, Real*,    \
                         Real*);                                                                 \
  template void rms_norm_gradient(const Real*, const Real*, const Real*, const Real*,            \
                                  std::int64_t, std::int64_t, Real*, Real*);                     \
  template void swiglu(const Real*, const Real*, std::int64_t, Real*);                           \
  template void swiglu_gradient(const Real*, std::int64_t, Real*, Real*, Real*);                 \
  template void embed(const Real*, const std::int32_t*, std::int64_t, std::int64_t, Real*);      \
  template void embed_gradient(const Real*, const std::int32_t*, std::int64_t, std::int64_t,     \
                               Real*);                                                           \
  template double cross_entropy(Real*, const std::int32_t*, std::int64_t, std::int64_t, double); \
  template double sum_of_squares(const Real*, std::int64_t);

CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::model
