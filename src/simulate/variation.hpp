// SPDX-License-Identifier: Apache-2.0
// How ranks differ from the machine file: the cluster block's spread, jitter and slow ranks. All of
// it is given by (seed, rank, operation), whatever order the clock goes in.
#pragma once

#include <cstdint>
#include <vector>

#include "cadenza/base/range.hpp"
#include "cadenza/config/experiment.hpp"

namespace cadenza::simulate {

class Variation {
 public:
  /// @param step  of the run: jitter differs from step to step
  Variation(const config::Experiment& experiment, std::int64_t step);
  /// What the machine's time of a rank's `operation`-th operation is multiplied by.
  double factor(Rank rank, std::uint64_t operation) const;

 private:
  std::uint64_t seed_;
  double jitter_;
  std::vector<double> rank_;  ///< empty: all are alike
};

}  // namespace cadenza::simulate
