// SPDX-License-Identifier: Apache-2.0
// A measurement that is repeated until its times agree.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace cadenza::app {

/// What no step notices.
inline constexpr double kUnnoticedSeconds = 20e-6;

/// Seconds of one measurement, by round. What disturbs a measurement makes it longer: the two
/// fastest rounds count.
class Rounds {
 public:
  void add(double seconds) {
    seconds_.insert(std::ranges::upper_bound(seconds_, seconds), seconds);
  }
  bool empty() const { return seconds_.empty(); }
  /// Of at least one round.
  double seconds() const {
    return seconds_.size() < 2 ? seconds_.front() : (seconds_[0] + seconds_[1]) / 2;
  }
  /// How much longer the second fastest round took, as a share of the fastest.
  double spread() const { return seconds_.size() < 2 ? 0.0 : seconds_[1] / seconds_[0] - 1; }
  /// Whether the two fastest rounds do not agree.
  bool noisy() const {
    constexpr double kMost = 0.1;
    if (seconds_.size() < 2 || !(seconds_[1] - seconds_[0] > kUnnoticedSeconds)) return false;
    return spread() > kMost;
  }

 private:
  std::vector<double> seconds_;  ///< ascending
};

/// The first names of `all`, joined, and how many more there are.
std::string some_of(const std::vector<std::string>& all);

}  // namespace cadenza::app
