// SPDX-License-Identifier: Apache-2.0
// Elements of rows on their way into messages and out of them, on the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cadenza/kernels/bfloat16.hpp"
#include "cadenza/kernels/device.hpp"

namespace cadenza::exec {

using Elements = Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>>;

/// Copies elements that may lie at any address: in a message, statistics follow shorter elements.
template <typename T>
void copy_unaligned(const void* from, void* to, std::int64_t count) {
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<std::byte*>(to);
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
  Kokkos::parallel_for(
      "copy_rows", Elements(0, count), KOKKOS_LAMBDA(const std::int64_t i) {
        std::memcpy(target + i * kSize, source + i * kSize, sizeof(T));
      });
}

/// Copies, rounds to nearest or widens.
template <typename From, typename To>
void convert_elements(const From* from, To* to, std::int64_t count) {
  Kokkos::parallel_for(
      "convert_rows", Elements(0, count),
      KOKKOS_LAMBDA(const std::int64_t i) { to[i] = static_cast<To>(from[i]); });
}

template <typename From, typename To>
void add_elements(const From* from, To* to, std::int64_t count) {
  Kokkos::parallel_for(
      "add_rows", Elements(0, count),
      KOKKOS_LAMBDA(const std::int64_t i) { to[i] += static_cast<To>(from[i]); });
}

template <typename T>
void zero_elements(T* to, std::int64_t count) {
  Kokkos::parallel_for(
      "zero_rows", Elements(0, count), KOKKOS_LAMBDA(const std::int64_t i) { to[i] = T(0); });
}

}  // namespace cadenza::exec
