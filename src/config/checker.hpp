// SPDX-License-Identifier: Apache-2.0
// What the checks of values that must fit each other share.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "config/value.hpp"

namespace cadenza::config {

/// The divisors of a number in words: "1, 2, 3 or 6".
inline std::string divisors(std::int64_t number) {
  std::vector<std::int64_t> all;
  for (std::int64_t part = 1; part * part <= number; ++part) {
    if (number % part != 0) continue;
    all.push_back(part);
    if (part * part != number) all.push_back(number / part);
  }
  std::ranges::sort(all);
  const std::int64_t last = all.back();
  all.pop_back();
  return all.empty() ? fmt::format("{}", last)
                     : fmt::format("{} or {}", fmt::join(all, ", "), last);
}

/// Refuses an experiment at the place of the value to change.
class Checker {
 public:
  explicit Checker(const Value& root) : root_(root) {}

  template <typename... Args>
  void require(bool holds, const char* path, fmt::format_string<Args...> format,
               Args&&... args) const {
    if (holds) return;
    fail_at(place_of(root_, path), path, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  const Value& root_;
};

/// Checks where documents come from, their lengths, questions and validation.
void check_data(const Checker& check, const Data& data, const Model& model);

/// Checks layers, chunks, schedule and servers of a pipeline.
void check_pipeline(const Checker& check, const Experiment& experiment);

}  // namespace cadenza::config
