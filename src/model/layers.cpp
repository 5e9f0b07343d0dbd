// SPDX-License-Identifier: Apache-2.0
// What runs over flat arrays.
#include "cadenza/model/layers.hpp"

#include "model/ordered_sum.hpp"

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

#define CADENZA_INSTANTIATE(Sum)                                 \
  template void clear(Sum*, std::int64_t);                       \
  template void copy(const Sum*, std::int64_t, Sum*);            \
  template void add(const Sum*, const Sum*, std::int64_t, Sum*); \
  template double sum_of_squares(const Sum*, std::int64_t);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
#undef CADENZA_INSTANTIATE
template void round(const float*, std::int64_t, bfloat16*);

}  // namespace cadenza::model
