// SPDX-License-Identifier: Apache-2.0
// Device kernels that copy elements of rows into and out of messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cadenza/kernels/device.hpp"

namespace cadenza::exec {

using Elements = Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>>;

/// Rows of a buffer, `width` elements of each of which belong to a message, where they are
/// contiguous.
struct StridedRows {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::int64_t stride = 0;  ///< elements between the begins of two rows in the buffer

  std::int64_t count() const { return rows * width; }
  bool contiguous() const { return width == stride || rows <= 1; }
  /// Returns the place in the buffer of the i-th element of the message.
  KOKKOS_INLINE_FUNCTION std::int64_t place(std::int64_t i) const {
    return i / width * stride + i % width;
  }
};

/// Calls each(i, j) for element i of the message, which is element j of the buffer.
template <typename Each>
void for_each_element(const char* label, const StridedRows& rows, const Each& each) {
  if (rows.contiguous()) {
    launch(
        label, Elements(0, rows.count()), KOKKOS_LAMBDA(const std::int64_t i) { each(i, i); });
  } else {
    launch(
        label, Elements(0, rows.count()),
        KOKKOS_LAMBDA(const std::int64_t i) { each(i, rows.place(i)); });
  }
}

/// Copies from buffer to message.
template <typename T>
void pack_elements(const T* buffer, T* message, const StridedRows& rows) {
  for_each_element(
      "pack_rows", rows, KOKKOS_LAMBDA(std::int64_t m, std::int64_t b) { message[m] = buffer[b]; });
}

/// Copies from message to buffer.
template <typename T>
void place_elements(const T* message, T* buffer, const StridedRows& rows) {
  for_each_element(
      "place_rows", rows,
      KOKKOS_LAMBDA(std::int64_t m, std::int64_t b) { buffer[b] = message[m]; });
}

template <typename T>
void add_elements(const T* message, T* buffer, const StridedRows& rows) {
  for_each_element(
      "add_rows", rows, KOKKOS_LAMBDA(std::int64_t m, std::int64_t b) { buffer[b] += message[m]; });
}

/// Copies between buffer and message where the message's elements may be unaligned: statistics
/// follow shorter inputs.
template <typename T>
void pack_unaligned(const T* buffer, std::byte* message, const StridedRows& rows) {
  for_each_element(
      "pack_rows", rows, KOKKOS_LAMBDA(std::int64_t m, std::int64_t b) {
        std::memcpy(message + m * static_cast<std::int64_t>(sizeof(T)), buffer + b, sizeof(T));
      });
}
template <typename T>
void place_unaligned(const std::byte* message, T* buffer, const StridedRows& rows) {
  for_each_element(
      "place_rows", rows, KOKKOS_LAMBDA(std::int64_t m, std::int64_t b) {
        std::memcpy(buffer + b, message + m * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
      });
}

/// Zeroes the rows' elements in the buffer.
template <typename T>
void clear_elements(T* buffer, const StridedRows& rows) {
  for_each_element(
      "clear_rows", rows, KOKKOS_LAMBDA(std::int64_t, std::int64_t b) { buffer[b] = T(0); });
}

template <typename T>
void zero_elements(T* to, std::int64_t count) {
  launch(
      "zero_rows", Elements(0, count), KOKKOS_LAMBDA(const std::int64_t i) { to[i] = T(0); });
}

}  // namespace cadenza::exec
