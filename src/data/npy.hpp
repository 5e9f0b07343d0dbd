// SPDX-License-Identifier: Apache-2.0
// Headers of NumPy's .npy files.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace cadenza::data {

/// What the header of a .npy file says.
struct NpyHeader {
  std::string descr;  ///< type, e.g. "<u2"
  bool fortran_order = false;
  std::string shape;                  ///< as written, e.g. "(1000,)"
  std::optional<std::int64_t> count;  ///< elements, where the array has one dimension
  std::int64_t data_offset = 0;       ///< bytes before the data
};

/// True when `bytes` begin as every .npy file does.
bool is_npy(std::span<const unsigned char> bytes);

/// Reads the header of format versions 1.0, 2.0 and 3.0.
/// @param path for messages
/// @throws Error(data) saying what was found.
NpyHeader parse_npy(const std::string& path, std::span<const unsigned char> bytes);

}  // namespace cadenza::data
