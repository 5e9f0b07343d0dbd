// SPDX-License-Identifier: Apache-2.0
// Seconds of something that all ranks do at the same time, so that what they share is shared.
#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/kernels/device.hpp"
#include "cadenza/trace/event.hpp"

namespace cadenza::app {

/// Of at least one value.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

inline double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Mean over the ranks of `world`. Collective.
inline double mean_over_ranks(comm::Communicator& world, double value) {
  world.all_reduce(std::span(&value, 1), comm::Reduction::sum);
  return value / world.size();
}

template <typename Body>
double seconds_of(const Body& body) {
  const std::int64_t begin = trace::now_ns();
  body();
  fence();
  return static_cast<double>(trace::now_ns() - begin) * 1e-9;
}

/// Median over repetitions, mean over ranks. The first call warms up; where it is long, it is the
/// measurement. Collective.
template <typename Body>
double measure(comm::Communicator& world, const Body& body) {
  constexpr double kEnough = 0.1;  // seconds of all repetitions
  constexpr int kMost = 9;
  world.barrier();
  const double first = mean_over_ranks(world, seconds_of(body));
  if (first > kEnough) return first;
  const int repetitions = std::clamp(static_cast<int>(kEnough / std::max(first, 1e-9)), 3, kMost);
  std::vector<double> seconds;
  for (int i = 0; i < repetitions; ++i) {
    world.barrier();
    seconds.push_back(seconds_of(body));
  }
  return mean_over_ranks(world, median(seconds));
}

}  // namespace cadenza::app
