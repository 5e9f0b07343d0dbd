// SPDX-License-Identifier: Apache-2.0
// The embedding, and what runs over flat arrays.
#include "cadenza/model/layers.hpp"

#include "ordered_sum.hpp"

namespace cadenza::model {
namespace {

/// Many rows share a token, so work is split by columns: each item adds all rows of some columns in
/// order. On the host an item is a thread's share of a row, in whole cache lines.
std::int64_t columns_per_item(std::int64_t width) {
  if (kDeviceIsCuda) return 1;
  const std::int64_t share = (width + Device().concurrency() - 1) / Device().concurrency();
  return (share + 15) / 16 * 16;
}

}  // namespace

template <typename Sum>
void embed(const Sum* table, Range vocab, const std::int32_t* tokens, std::int64_t rows,
           std::int64_t width, Sum* x) {
  for_rows(
      "embed", rows, KOKKOS_LAMBDA(const Team& team, const std::int64_t row) {
        const std::int64_t token = tokens[row];
        Sum* to = x + row * width;
        if (token < vocab.begin || token >= vocab.end) {
          for_columns(team, width, [=](const std::int64_t c) { to[c] = 0; });
          return;
        }
        const Sum* from = table + (token - vocab.begin) * width;
        for_columns(team, width, [=](const std::int64_t c) { to[c] = from[c]; });
      });
}

template <typename Sum>
void embed_gradient(const Sum* dx, Range vocab, const std::int32_t* tokens, std::int64_t rows,
                    std::int64_t width, Sum* dtable) {
  const std::int64_t columns = columns_per_item(width);
  launch(
      "embed_gradient",
      Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>>(0,
                                                                   (width + columns - 1) / columns),
      KOKKOS_LAMBDA(const std::int64_t item) {
        const std::int64_t first = item * columns;
        const std::int64_t last = first + columns < width ? first + columns : width;
        for (std::int64_t row = 0; row < rows; ++row) {
          const std::int64_t token = tokens[row];
          if (token < vocab.begin || token >= vocab.end) continue;
          Sum* to = dtable + (token - vocab.begin) * width;
          const Sum* from = dx + row * width;
          CADENZA_SIMD()
          for (std::int64_t c = first; c < last; ++c) to[c] += from[c];
        }
      });
}

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

template <typename Sum>
void add(const Sum* a, const Sum* b, std::int64_t count, Sum* to) {
  for_elements(
      "add", count, KOKKOS_LAMBDA(const std::int64_t i) { to[i] = a[i] + b[i]; });
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

#define CADENZA_INSTANTIATE(Sum)                                                                   \
  template void embed(const Sum*, Range, const std::int32_t*, std::int64_t, std::int64_t, Sum*);   \
  template void embed_gradient(const Sum*, Range, const std::int32_t*, std::int64_t, std::int64_t, \
                               Sum*);                                                              \
  template void clear(Sum*, std::int64_t);                                                         \
  template void copy(const Sum*, std::int64_t, Sum*);                                              \
  template void add(const Sum*, const Sum*, std::int64_t, Sum*);                                   \
  template double sum_of_squares(const Sum*, std::int64_t);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
#undef CADENZA_INSTANTIATE
template void round(const float*, std::int64_t, bfloat16*);

}  // namespace cadenza::model
