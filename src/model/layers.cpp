// SPDX-License-Identifier: Apache-2.0
// Element-wise kernels of the transformer over flat arrays, SwiGLU, rotary frequencies.
#include "cadenza/model/layers.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/vector_loops.hpp"

namespace cadenza::model {

template <typename Real>
void round(const Accumulator<Real>* from, std::int64_t count, Real* to) {
  for_elements(
      "round", count, KOKKOS_LAMBDA(const std::int64_t i) { narrow(from[i], to[i]); });
}

template <typename Sum>
void clear(Sum* values, std::int64_t count) {
  for_elements(
      "clear", count, KOKKOS_LAMBDA(const std::int64_t i) { values[i] = 0; });
}

template <typename Sum>
void copy(const Sum* from, std::int64_t count, Sum* to) {
  for_elements(
      "copy", count, KOKKOS_LAMBDA(const std::int64_t i) { to[i] = from[i]; });
}

template <typename T>
void add(const T* a, const T* b, std::int64_t count, T* to) {
  for_elements(
      "add", count,
      KOKKOS_LAMBDA(const std::int64_t i) { narrow(widen(a[i]) + widen(b[i]), to[i]); });
}

template <typename Sum>
double sum_of_squares(const Sum* values, std::int64_t count) {
  return ordered_sum(
      "sum_of_squares", count, kTeamElements,
      KOKKOS_LAMBDA(const Team& team, const std::int64_t first, const std::int64_t last) {
        const Sum* from = values + first;
        return sum_columns(team, last - first, [=](const std::int64_t i) {
          return static_cast<double>(from[i]) * static_cast<double>(from[i]);
        });
      });
}

namespace {

/// Columns that are added before the sum is stored.
constexpr std::int64_t kSummedColumns = 64;

template <typename Part, typename Out>
struct SumParts {
  using Sum = Accumulator<Part>;
  ShardParts<Part> parts;
  std::int64_t rows;
  std::int64_t width;
  Out* sum;

  KOKKOS_FUNCTION void operator()(const Team& team, std::int64_t row) const {
    if constexpr (kDeviceIsCuda) {
      for_columns(team, width, [=, this](const std::int64_t c) { add_column(row * width + c); });
    } else {
      for (std::int64_t c = 0; c < width; c += kSummedColumns) {
        const std::int64_t left = width - c;
        add_columns(team, row * width + c, left < kSummedColumns ? left : kSummedColumns);
      }
    }
  }

  KOKKOS_FUNCTION void add_column(std::int64_t element) const {
    Sum total = widen(parts.of(0, rows * width)[element]);
    for (int rank = 1; rank < parts.ranks; ++rank) {
      total += widen(parts.of(rank, rows * width)[element]);
    }
    narrow(total, sum[element]);
  }

  KOKKOS_FUNCTION void add_columns(const Team& team, std::int64_t first, std::int64_t count) const {
    Sum block[kSummedColumns];
    Sum* const sums = block;
    for (int rank = 0; rank < parts.ranks; ++rank) {
      const Part* from = parts.of(rank, rows * width) + first;
      if (rank == 0) {
        for_columns(team, count, [=](const std::int64_t c) { sums[c] = widen(from[c]); });
      } else {
        for_columns(team, count, [=](const std::int64_t c) { sums[c] += widen(from[c]); });
      }
    }
    Out* to = sum + first;
    for_columns(team, count, [=](const std::int64_t c) { narrow(sums[c], to[c]); });
  }
};

}  // namespace

template <typename Part, typename Out>
void sum_parts(const ShardParts<Part>& parts, std::int64_t rows, std::int64_t width, Out* sum) {
  for_rows("sum_parts", rows, SumParts<Part, Out>{parts, rows, width, sum});
}

#define CADENZA_INSTANTIATE(Part, Out) \
  template void sum_parts(const ShardParts<Part>&, std::int64_t, std::int64_t, Out*);
CADENZA_INSTANTIATE(float, float)
CADENZA_INSTANTIATE(double, double)
CADENZA_INSTANTIATE(bfloat16, float)
CADENZA_INSTANTIATE(bfloat16, bfloat16)
CADENZA_INSTANTIATE(float, bfloat16)
#undef CADENZA_INSTANTIATE

#define CADENZA_INSTANTIATE(Sum)                                 \
  template void clear(Sum*, std::int64_t);                       \
  template void copy(const Sum*, std::int64_t, Sum*);            \
  template void add(const Sum*, const Sum*, std::int64_t, Sum*); \
  template double sum_of_squares(const Sum*, std::int64_t);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
#undef CADENZA_INSTANTIATE
template void round(const float*, std::int64_t, bfloat16*);
template void copy(const bfloat16*, std::int64_t, bfloat16*);
template void add(const bfloat16*, const bfloat16*, std::int64_t, bfloat16*);

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

namespace {

using config::RopeScaling;
using config::RopeScalingKind;

/// Returns how often a pair of frequency f turns within the tokens of training.
double turns(const RopeScaling& s, double f) {
  return static_cast<double>(s.original_context) * f / (2 * std::numbers::pi);
}

/// Returns the (fractional) pair that turns `turns` times within the tokens of training.
double pair_of(const config::Rope& rope, int head_dim, double turns) {
  const double tokens_per_turn = static_cast<double>(rope.scaling.original_context) / turns;
  return head_dim * std::log(tokens_per_turn / (2 * std::numbers::pi)) / (2 * std::log(rope.theta));
}

/// Returns the weight of interpolation (f / factor) for pair d: 0 below the pair of beta_fast, 1
/// above that of beta_slow.
double yarn_ramp(const config::Rope& rope, int head_dim, double d) {
  double low = pair_of(rope, head_dim, rope.scaling.beta_fast);
  double high = pair_of(rope, head_dim, rope.scaling.beta_slow);
  if (rope.scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(0.0, low);
  high = std::min(head_dim - 1.0, high);
  if (low == high) high += 0.001;
  return std::clamp((d - low) / (high - low), 0.0, 1.0);
}

/// Returns the weight of f itself: 0 below low_frequency turns, 1 above high_frequency.
double llama3_share(const RopeScaling& s, double f) {
  return std::clamp((turns(s, f) - s.low_frequency) / (s.high_frequency - s.low_frequency), 0.0,
                    1.0);
}

double scaled(const config::Rope& rope, int head_dim, int d, double f) {
  const RopeScaling& s = rope.scaling;
  double interpolated = 0;  // weight of f / factor
  switch (s.kind) {
    case RopeScalingKind::none:
      return f;
    case RopeScalingKind::linear:
      return f / s.factor;
    case RopeScalingKind::yarn:
      interpolated = yarn_ramp(rope, head_dim, d);
      break;
    case RopeScalingKind::llama3:
      interpolated = 1 - llama3_share(s, f);
      break;
  }
  return interpolated * (f / s.factor) + (1 - interpolated) * f;
}

double mscale(double factor, double weight) {
  return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1;
}

/// Returns the factor of both Q and K, so scores grow by its square. As in Megatron-LM and, with
/// attention_factor, in Hugging Face's transformers.
double concentration(const RopeScaling& s) {
  if (s.kind != RopeScalingKind::yarn) return 1;
  if (s.attention_factor > 0) return s.attention_factor;
  if (s.mscale == 0) return mscale(s.factor, 1);
  return mscale(s.factor, s.mscale) / mscale(s.factor, s.mscale_all_dim);
}

}  // namespace

attention::RotaryFrequencies rotary_frequencies(const config::Rope& rope, int head_dim) {
  attention::RotaryFrequencies all;
  for (int d = 0; d < head_dim / 2; ++d) {
    const double f = std::pow(rope.theta, -2.0 * d / head_dim);
    all.of_pair.push_back(scaled(rope, head_dim, d, f));
  }
  all.magnitude = concentration(rope.scaling);
  return all;
}

}  // namespace cadenza::model
