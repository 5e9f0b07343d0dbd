// SPDX-License-Identifier: Apache-2.0
// Files of cadenza attend: metadata of the input, checks for numbers that are not finite, and which
// outputs may be replaced.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cadenza/plan/plan.hpp"
#include "cadenza/storage/hdf5.hpp"

namespace cadenza::app {

/// The input file's metadata.
struct AttendProblem {
  AttentionShape shape;  ///< heads and head_dim; the caller sets element sizes
  std::vector<std::int64_t> lengths;
  std::int64_t tokens = 0;  ///< at least 1, the sum of the lengths
  bool backward = false;
};

/// Reads the metadata of the input. @throws Error(data) with the dataset, what was found and what
/// is valid
AttendProblem read_problem(const storage::File& file);

/// Place of a non-finite number in a dataset [tokens, heads, ...].
struct NonFinite {
  std::int64_t token = 0;
  std::int64_t head = 0;
  double value = 0;
};

/// Returns the first element for which value_of(element), the number used in computation, is not
/// finite. A token's `width` elements are divided evenly among `heads`.
template <typename Sum, typename F>
std::optional<NonFinite> first_non_finite(std::span<const Sum> values, std::int64_t width,
                                          std::int64_t heads, const F& value_of) {
  const auto found =
      std::ranges::find_if(values, [&](Sum value) { return !std::isfinite(value_of(value)); });
  if (found == values.end()) return std::nullopt;
  const std::int64_t at = found - values.begin();
  return NonFinite{at / width, at % width / (width / heads), static_cast<double>(value_of(*found))};
}

/// Attribute `schema` of an output.
inline constexpr const char* kAttendSchema = "cadenza-attend/1";

/// Checks that the output may be written. @throws Error(data) if `path` is the input itself or,
/// without --force, a file that attend did not write
void require_attend_output(const std::string& path, const std::string& input, bool force);

}  // namespace cadenza::app
