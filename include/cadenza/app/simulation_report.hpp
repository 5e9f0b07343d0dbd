// SPDX-License-Identifier: Apache-2.0
// What `cadenza simulate` prints.
#pragma once

#include <string>
#include <vector>

#include "cadenza/app/simulation.hpp"

namespace cadenza::app {

/// Where the time of every rank went, over the steps that were added.
class TimeTable {
 public:
  void add(const simulate::Result& step);

  /// For every class of time: the mean over ranks and the rank with most of it.
  std::string text() const;
  /// The rank that computes longest, which the others wait for, and what makes it so.
  std::string slowest() const;

 private:
  std::vector<simulate::RankTimes> ranks_;  ///< sums over steps; `idle_` beside them
  std::vector<double> idle_;
  double seconds_ = 0;
  int steps_ = 0;
};

/// Step time, bound, throughput.
std::string describe(const SimulationSummary& summary);

/// The verdict and a line for ranks beyond the limit.
std::string describe(const MemoryVerdict& memory);

}  // namespace cadenza::app
