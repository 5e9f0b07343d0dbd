// SPDX-License-Identifier: Apache-2.0
// What `cadenza simulate` prints.
#pragma once

#include <string>
#include <vector>

#include "app/planner/simulate/simulation.hpp"

namespace cadenza::app {

/// Where the time of every rank went, over the steps that were added. The parts are those that
/// `cadenza-analyze summary` finds in the trace; they add up to the step.
class TimeTable {
 public:
  /// A part of a step.
  struct Part {
    const char* name;  ///< as people read it
    const char* key;   ///< as the analysis has it
    double mean = 0;   ///< seconds of a step, over ranks
    double most = 0;   ///< of the rank that has most
    std::size_t rank = 0;
  };

  void add(const simulate::Result& step);

  std::vector<Part> parts() const;
  /// Of every part that takes time: the mean over ranks and the rank with most of it.
  std::string text() const;
  /// The rank that computes longest, which the others wait for, and what makes it so.
  std::string slowest() const;

 private:
  std::vector<simulate::RankTimes> ranks_;  ///< sums over steps
  double seconds_ = 0;
  int steps_ = 0;
};

/// Step time, bound, throughput.
std::string describe(const SimulationSummary& summary);

/// The verdict and a line for ranks beyond the limit.
std::string describe(const MemoryVerdict& memory);

/// All of it, for programs (docs/simulation.md).
/// @param folder  of the run that was written; empty: none was
std::string to_json(const Simulation& simulation, const SimulationSummary& summary,
                    const TimeTable& table, const std::string& folder);

}  // namespace cadenza::app
