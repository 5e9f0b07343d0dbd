// SPDX-License-Identifier: Apache-2.0
// Writes the trace of simulated steps: the files of a run, rank by rank after each step. Only one
// file is open at a time: an open HDF5 file costs 0.8 MiB.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/planner/simulate/simulation.hpp"
#include "cadenza/simulate/recording.hpp"
#include "cadenza/trace/writer.hpp"

namespace cadenza::app {

class SimulatedTrace {
 public:
  /// Writes the index; the ranks' files follow with the first step.
  /// @param folder  must exist
  /// @param steps   number of steps that will be written
  /// @param events  whether to write events, besides steps, memory and plans
  /// @throws Error(data)
  SimulatedTrace(const Simulation& simulation, const std::string& folder, std::int64_t steps,
                 bool events);

  /// Returns an observer that records the next step.
  simulate::Observer observe(std::int64_t step);
  /// @throws Error(data), e.g. if the disk is full
  void write(const SimulatedStep& step);

 private:
  using Tasks = std::vector<std::vector<trace::PlannedTask>>;
  void write_rank(const trace::RankInfo& info, const SimulatedStep& step, const Tasks& tasks,
                  const cost::Pool& pool, trace::StepRecord record,
                  trace::Recorder& recorder) const;

  const Simulation& simulation_;
  std::string folder_;
  std::int64_t steps_left_;
  trace::RunInfo run_;
  std::vector<trace::RankInfo> ranks_;
  std::vector<std::int64_t> clocks_;  ///< nanoseconds by which each rank's is ahead
  simulate::Recording recording_;
  std::int64_t begin_ns_ = 0;  ///< of the next step
  bool begun_ = false;         ///< the files exist
};

}  // namespace cadenza::app
