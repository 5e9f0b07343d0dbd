// SPDX-License-Identifier: Apache-2.0
#include "cadenza/attention/core_attention.hpp"

#include <Kokkos_Core.hpp>

namespace cadenza::attention {
namespace {

using Items = Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>>;

template <typename Real>
struct Initialise {
  Real* out;
  Real* lse;
  int head_dim;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    lse[i] = -Kokkos::Experimental::infinity_v<Real>;
    for (int d = 0; d < head_dim; ++d) out[i * head_dim + d] = 0;
  }
};

/// One (row, head). With m the larger lse and e = exp(smaller - m) in [0, 1], nothing overflows
/// however far apart the two are.
template <typename Real>
struct Merge {
  Real* out;
  Real* lse;
  const Real* part_out;
  const Real* part_lse;
  int head_dim;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const Real empty = -Kokkos::Experimental::infinity_v<Real>;
    const Real old = lse[i];
    const Real part = part_lse[i];
    if (part == empty && old != empty) return;
    Real* to = out + i * head_dim;
    const Real* from = part_out + i * head_dim;
    if (old == empty) {  // takes the part as it is, except that an empty one is zero
      for (int d = 0; d < head_dim; ++d) to[d] = part == empty ? 0 : from[d];
      lse[i] = part;
      return;
    }
    const Real high = old > part ? old : part;
    const Real sum = Kokkos::exp(old - high) + Kokkos::exp(part - high);
    const Real keep = Kokkos::exp(old - high) / sum;
    const Real take = Kokkos::exp(part - high) / sum;
    for (int d = 0; d < head_dim; ++d) to[d] = keep * to[d] + take * from[d];
    lse[i] = high + Kokkos::log(sum);
  }
};

template <typename Real>
struct Delta {
  const Real* out;
  const Real* dout;
  Real* delta;
  int head_dim;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    Real sum = 0;
    for (int d = 0; d < head_dim; ++d) sum += out[i * head_dim + d] * dout[i * head_dim + d];
    delta[i] = sum;
  }
};

template <typename Real>
struct FillTable {
  Real* cos;
  Real* sin;
  int half;
  int head_dim;
  double theta;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const auto position = static_cast<double>(i / half);
    const auto pair = static_cast<double>(i % half);
    const double angle = position * Kokkos::pow(theta, -2.0 * pair / head_dim);
    cos[i] = static_cast<Real>(Kokkos::cos(angle));
    sin[i] = static_cast<Real>(Kokkos::sin(angle));
  }
};

template <typename Real>
struct Rotate {
  const Real* cos;
  const Real* sin;
  Real* k;
  Array<std::int32_t> positions;
  int half;
  int kv_heads;
  int head_dim;
  Real sign;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t row = static_cast<std::int64_t>(positions(i / kv_heads)) * half;
    Real* head = k + i * head_dim;
    for (int d = 0; d < half; ++d) {
      const Real c = cos[row + d];
      const Real s = sign * sin[row + d];
      const Real low = head[d];
      const Real high = head[d + half];
      head[d] = low * c - high * s;
      head[d + half] = high * c + low * s;
    }
  }
};

}  // namespace

template <typename Real>
void initialise(Real* out, Real* lse, std::int64_t rows, int heads, int head_dim) {
  Kokkos::parallel_for("attention_initialise", Items(0, rows * heads),
                       Initialise<Real>{out, lse, head_dim});
}

template <typename Real>
void merge_partial(Real* out, Real* lse, const Real* part_out, const Real* part_lse,
                   std::int64_t rows, int heads, int head_dim) {
  Kokkos::parallel_for("attention_merge", Items(0, rows * heads),
                       Merge<Real>{out, lse, part_out, part_lse, head_dim});
}

template <typename Real>
void delta(const Real* out, const Real* dout, std::int64_t rows, int heads, int head_dim,
           Real* delta) {
  Kokkos::parallel_for("attention_delta", Items(0, rows * heads),
                       Delta<Real>{out, dout, delta, head_dim});
}

template <typename Real>
kernels::RotaryTable<Real> make_rotary_table(MemoryLedger& ledger, std::int64_t positions,
                                             int head_dim, double theta) {
  kernels::RotaryTable<Real> table;
  table.half = head_dim / 2;
  const std::int64_t count = positions * table.half;
  if (count == 0) return table;
  table.cos = allocate<Real>(ledger, MemoryKind::attention, "rotary_cos", count);
  table.sin = allocate<Real>(ledger, MemoryKind::attention, "rotary_sin", count);
  Kokkos::parallel_for(
      "rotary_table", Items(0, count),
      FillTable<Real>{table.cos.data(), table.sin.data(), table.half, head_dim, theta});
  return table;
}

template <typename Real>
void rotate_keys(const kernels::RotaryTable<Real>& table, Real* k,
                 const Array<std::int32_t>& positions, std::int64_t rows, int kv_heads,
                 int head_dim, Rotation rotation) {
  if (!table.enabled()) return;
  Kokkos::parallel_for(
      "rotate_keys", Items(0, rows * kv_heads),
      Rotate<Real>{table.cos.data(), table.sin.data(), k, positions, table.half, kv_heads, head_dim,
                   static_cast<Real>(static_cast<int>(rotation))});
}

#define CADENZA_INSTANTIATE(Real)                                                               \
  template void initialise<Real>(Real*, Real*, std::int64_t, int, int);                         \
  template void merge_partial<Real>(Real*, Real*, const Real*, const Real*, std::int64_t, int,  \
                                    int);                                                       \
  template void delta<Real>(const Real*, const Real*, std::int64_t, int, int, Real*);           \
  template kernels::RotaryTable<Real> make_rotary_table<Real>(MemoryLedger&, std::int64_t, int, \
                                                              double);                          \
  template void rotate_keys<Real>(const kernels::RotaryTable<Real>&, Real*,                     \
                                  const Array<std::int32_t>&, std::int64_t, int, int, Rotation);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::attention
