// SPDX-License-Identifier: Apache-2.0
// The files of cadenza attend: what the input says before its rows are read, numbers that are not
// finite, what the output may replace.
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

/// What the input file says before its rows are read.
struct AttendProblem {
  plan::AttentionShape shape;  ///< heads and head_dim; bytes are the caller's
  std::vector<std::int64_t> lengths;
  std::int64_t tokens = 0;  ///< at least 1, the sum of the lengths
  bool backward = false;
};

/// @throws Error(data) that names the dataset, what was found and what is valid
AttendProblem read_problem(const storage::File& file);

/// Where a dataset [tokens, heads, ...] is not finite.
struct NonFinite {
  std::int64_t token = 0;
  std::int64_t head = 0;
  double value = 0;
};

/// The first such row, `value_of(element)` being what is computed with. `heads` divide a token's
/// `width` elements evenly.
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

/// @throws Error(data) where `path` is the input itself, or a file that attend did not write and
/// that --force does not give up
void require_attend_output(const std::string& path, const std::string& input, bool force);

}  // namespace cadenza::app
