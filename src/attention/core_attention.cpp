// SPDX-License-Identifier: Apache-2.0
#include "cadenza/attention/core_attention.hpp"

#include <Kokkos_Core.hpp>

#include "attention/head_loops.hpp"
#include "cadenza/kernels/simd.hpp"

namespace cadenza::attention {
namespace {

using Items = Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>>;

/// Index of a pair (row, head) in rows that are contiguous in all their heads.
struct AllHeads {
  KOKKOS_FUNCTION std::int64_t operator()(std::int64_t i) const { return i; }
};

/// Index of the i-th pair (row, head of a slice) in rows that hold more heads.
struct SomeHeads {
  std::int64_t row_heads;
  std::int64_t first;
  std::int64_t count;
  explicit SomeHeads(const HeadSlice& slice)
      : row_heads(slice.row_heads), first(slice.heads.begin), count(slice.heads.size()) {}
  KOKKOS_FUNCTION std::int64_t operator()(std::int64_t i) const {
    return i / count * row_heads + first + i % count;
  }
};

template <typename Real, typename Heads>
struct Initialise {
  Real* out;
  Real* lse;
  int head_dim;
  Heads heads;
  template <typename Lanes>
  KOKKOS_FUNCTION void operator()(const Lanes& lanes, std::int64_t i) const {
    const std::int64_t at = heads(i);
    Real* to = out + at * head_dim;
    for_elements(lanes, head_dim, [=](const int d) { to[d] = 0; });
    write_once(lanes, -Kokkos::Experimental::infinity_v<Real>, lse + at);
  }
};

/// Merges one (row, head). With m the larger lse and e = exp(smaller - m) in [0, 1], nothing
/// overflows however far apart the two are.
template <typename Real, typename Heads>
struct Merge {
  Real* out;
  Real* lse;
  const Real* part_out;
  const Real* part_lse;
  int head_dim;
  Heads heads;
  template <typename Lanes>
  KOKKOS_FUNCTION void operator()(const Lanes& lanes, std::int64_t i) const {
    const Real empty = -Kokkos::Experimental::infinity_v<Real>;
    const std::int64_t at = heads(i);
    const Real old = lse[at];
    const Real part = part_lse[i];
    if (part == empty && old != empty) return;
    Real* to = out + at * head_dim;
    const Real* from = part_out + i * head_dim;
    if (old == empty) {  // copies the part, except that an empty one becomes zero
      for_elements(lanes, head_dim, [=](const int d) { to[d] = part == empty ? 0 : from[d]; });
      write_once(lanes, part, lse + at);
      return;
    }
    const Real high = old > part ? old : part;
    const Real sum = Kokkos::exp(old - high) + Kokkos::exp(part - high);
    const Real keep = Kokkos::exp(old - high) / sum;
    const Real take = Kokkos::exp(part - high) / sum;
    for_elements(lanes, head_dim, [=](const int d) { to[d] = keep * to[d] + take * from[d]; });
    write_once(lanes, high + Kokkos::log(sum), lse + at);
  }
};

template <typename Real, typename Out>
struct Delta {
  using Sum = Accumulator<Real>;
  const Out* out;
  const Real* dout;
  Sum* delta;
  int head_dim;
  template <typename Lanes>
  KOKKOS_FUNCTION void operator()(const Lanes& lanes, std::int64_t i) const {
    const Out* left = out + i * head_dim;
    const Real* right = dout + i * head_dim;
    const Sum sum = sum_elements<Sum>(
        lanes, head_dim, [=](const int d) { return widen(left[d]) * widen(right[d]); });
    write_once(lanes, sum, delta + i);
  }
};

template <typename Real>
struct FillTable {
  Real* cos;
  Real* sin;
  int half;
  Array<double> frequencies;
  double magnitude;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const auto position = static_cast<double>(i / half);
    const double angle = position * frequencies(i % half);
    cos[i] = static_cast<Real>(magnitude * Kokkos::cos(angle));
    sin[i] = static_cast<Real>(magnitude * Kokkos::sin(angle));
  }
};

/// Rotates the pairs of a head: to = from * (cos + i sin), both as pairs (d, d + half). `to` may be
/// `from`.
template <typename Lanes, typename From, typename To, typename Sum>
KOKKOS_INLINE_FUNCTION void rotate(const Lanes& lanes, const From* from, const Sum* cos,
                                   const Sum* sin, Sum sign, int half, int head_dim, To* to) {
  for_elements(lanes, half, [=](const int d) {
    const Sum low = widen(from[d]);
    const Sum high = widen(from[d + half]);
    narrow(low * cos[d] - high * (sign * sin[d]), to[d]);
    narrow(high * cos[d] + low * (sign * sin[d]), to[d + half]);
  });
  const int rest = 2 * half;
  for_elements(lanes, head_dim - rest,
               [=](const int d) { narrow(widen(from[rest + d]), to[rest + d]); });
}

/// Rotates one (row, head). Sign -1 turns back.
template <typename Real>
struct RotateKeys {
  using Sum = Accumulator<Real>;
  const Sum* cos;
  const Sum* sin;
  Sum sign;
  int half;
  Real* k;
  Array<std::int32_t> positions;
  int kv_heads;
  int head_dim;
  template <typename Lanes>
  KOKKOS_FUNCTION void operator()(const Lanes& lanes, std::int64_t i) const {
    const std::int64_t at = static_cast<std::int64_t>(positions(i / kv_heads)) * half;
    Real* head = k + i * head_dim;
    rotate(lanes, head, cos + at, sin + at, sign, half, head_dim, head);
  }
};

/// Joins one (row, head of dq, dk or dv).
template <typename Real>
struct JoinGradients {
  using Sum = Accumulator<Real>;
  const Sum* cos;
  const Sum* sin;
  int half;  ///< 0 without a table
  AttentionShape shape;
  InputGradients<Sum> gradients;
  Array<std::int32_t> positions;
  Real* joined;
  template <typename Lanes>
  KOKKOS_FUNCTION void operator()(const Lanes& lanes, std::int64_t i) const {
    const int all = shape.heads + 2 * shape.kv_heads;
    const std::int64_t row = i / all;
    const int head = static_cast<int>(i % all);
    const int key = head - shape.heads;
    const int value = key - shape.kv_heads;
    Real* to = joined + i * shape.head_dim;
    if (key < 0) {
      copy(lanes, gradients.dq + (row * shape.heads + head) * shape.head_dim, to);
    } else if (value >= 0) {
      copy(lanes, gradients.dv + (row * shape.kv_heads + value) * shape.head_dim, to);
    } else {
      const Sum* from = gradients.dk + (row * shape.kv_heads + key) * shape.head_dim;
      const std::int64_t at = static_cast<std::int64_t>(positions(row)) * half;
      rotate(lanes, from, cos + at, sin + at, Sum(-1), half, shape.head_dim, to);
    }
  }
  template <typename Lanes>
  KOKKOS_FUNCTION void copy(const Lanes& lanes, const Sum* from, Real* to) const {
    for_elements(lanes, shape.head_dim, [=](const int d) { narrow(from[d], to[d]); });
  }
};

}  // namespace

template <typename Real>
void initialise(Real* out, Real* lse, std::int64_t rows, int heads, int head_dim) {
  for_heads("attention_initialise", rows * heads,
            Initialise<Real, AllHeads>{out, lse, head_dim, {}});
}

template <typename Real>
void initialise(Real* out, Real* lse, std::int64_t rows, const HeadSlice& slice, int head_dim) {
  for_heads("attention_initialise", rows * slice.heads.size(),
            Initialise<Real, SomeHeads>{out, lse, head_dim, SomeHeads(slice)});
}

template <typename Real>
void merge_partial(Real* out, Real* lse, const Real* part_out, const Real* part_lse,
                   std::int64_t rows, int heads, int head_dim) {
  for_heads("attention_merge", rows * heads,
            Merge<Real, AllHeads>{out, lse, part_out, part_lse, head_dim, {}});
}

template <typename Real>
void merge_partial(Real* out, Real* lse, const HeadSlice& slice, const Real* part_out,
                   const Real* part_lse, std::int64_t rows, int head_dim) {
  for_heads("attention_merge", rows * slice.heads.size(),
            Merge<Real, SomeHeads>{out, lse, part_out, part_lse, head_dim, SomeHeads(slice)});
}

template <typename Real, typename Out>
void delta(const Out* out, const Real* dout, std::int64_t rows, int heads, int head_dim,
           Accumulator<Real>* delta) {
  for_heads("attention_delta", rows * heads, Delta<Real, Out>{out, dout, delta, head_dim});
}

template <typename Sum>
kernels::RotaryTable<Sum> make_rotary_table(MemoryLedger& ledger, std::int64_t positions,
                                            const RotaryFrequencies& frequencies) {
  kernels::RotaryTable<Sum> table;
  table.half = static_cast<int>(frequencies.of_pair.size());
  const std::int64_t count = positions * table.half;
  if (count == 0) return table;
  table.cos = allocate<Sum>(ledger, MemoryKind::attention, "rotary_cos", count);
  table.sin = allocate<Sum>(ledger, MemoryKind::attention, "rotary_sin", count);
  const Array<double> of_pair("rotary_frequencies", frequencies.of_pair.size());
  auto host = Kokkos::create_mirror_view(of_pair);
  std::ranges::copy(frequencies.of_pair, host.data());
  Kokkos::deep_copy(of_pair, host);
  launch("rotary_table", Items(0, count),
         FillTable<Sum>{table.cos.data(), table.sin.data(), table.half, of_pair,
                        frequencies.magnitude});
  return table;
}

template <typename Real>
void rotate_keys(const kernels::RotaryTable<Accumulator<Real>>& table, Real* k,
                 const Array<std::int32_t>& positions, std::int64_t rows, int kv_heads,
                 int head_dim) {
  if (!table.enabled()) return;
  for_heads("rotate_keys", rows * kv_heads,
            RotateKeys<Real>{table.cos.data(), table.sin.data(), 1, table.half, k, positions,
                             kv_heads, head_dim});
}

template <typename Sum>
void turn_back_keys(const kernels::RotaryTable<Sum>& table, Sum* dk,
                    const Array<std::int32_t>& positions, std::int64_t rows, int kv_heads,
                    int head_dim) {
  if (!table.enabled()) return;
  for_heads("turn_back_keys", rows * kv_heads,
            RotateKeys<Sum>{table.cos.data(), table.sin.data(), -1, table.half, dk, positions,
                            kv_heads, head_dim});
}

template <typename Real>
void join_gradients(const kernels::RotaryTable<Accumulator<Real>>& table,
                    const AttentionShape& shape, const InputGradients<Accumulator<Real>>& gradients,
                    const Array<std::int32_t>& positions, std::int64_t rows, Real* joined) {
  for_heads(
      "join_gradients", rows * (shape.heads + 2 * shape.kv_heads),
      JoinGradients<Real>{table.cos.data(), table.sin.data(), table.enabled() ? table.half : 0,
                          shape, gradients, positions, joined});
}

#define CADENZA_INSTANTIATE(Sum)                                                                \
  template void initialise<Sum>(Sum*, Sum*, std::int64_t, int, int);                            \
  template void initialise<Sum>(Sum*, Sum*, std::int64_t, const HeadSlice&, int);               \
  template void merge_partial<Sum>(Sum*, Sum*, const Sum*, const Sum*, std::int64_t, int, int); \
  template void merge_partial<Sum>(Sum*, Sum*, const HeadSlice&, const Sum*, const Sum*,        \
                                   std::int64_t, int);                                          \
  template void turn_back_keys<Sum>(const kernels::RotaryTable<Sum>&, Sum*,                     \
                                    const Array<std::int32_t>&, std::int64_t, int, int);        \
  template kernels::RotaryTable<Sum> make_rotary_table<Sum>(MemoryLedger&, std::int64_t,        \
                                                            const RotaryFrequencies&);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
#undef CADENZA_INSTANTIATE

#define CADENZA_INSTANTIATE(Real)                                                        \
  template void rotate_keys<Real>(const kernels::RotaryTable<Accumulator<Real>>&, Real*, \
                                  const Array<std::int32_t>&, std::int64_t, int, int);   \
  template void join_gradients<Real>(                                                    \
      const kernels::RotaryTable<Accumulator<Real>>&, const AttentionShape&,             \
      const InputGradients<Accumulator<Real>>&, const Array<std::int32_t>&, std::int64_t, Real*);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

#define CADENZA_INSTANTIATE(Real, Out) \
  template void delta<Real>(const Out*, const Real*, std::int64_t, int, int, Accumulator<Real>*);
CADENZA_INSTANTIATE(float, float)
CADENZA_INSTANTIATE(double, double)
CADENZA_INSTANTIATE(bfloat16, float)
CADENZA_INSTANTIATE(bfloat16, bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::attention
