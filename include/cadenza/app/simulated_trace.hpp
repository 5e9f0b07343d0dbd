// SPDX-License-Identifier: Apache-2.0
// The trace of simulated steps: the same files as a run's, written rank by rank when a step is
// over.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cadenza/app/simulation.hpp"
#include "cadenza/simulate/recording.hpp"
#include "cadenza/trace/writer.hpp"

namespace cadenza::app {

class SimulatedTrace {
 public:
  /// Creates the files of all ranks, and their index.
  /// @param folder  exists
  /// @param events  whether they are written, beside steps, memory and plans
  /// @throws Error(data)
  SimulatedTrace(const Simulation& simulation, const std::string& folder, bool events);

  /// Takes what the simulator tells of the next step.
  simulate::Observer observe(std::int64_t step);
  /// @throws Error(data), e.g. when the disk is full
  void write(const SimulatedStep& step);
  void finish();

 private:
  const Simulation& simulation_;
  simulate::Recording recording_;
  std::int64_t begin_ns_ = 0;  ///< of the next step
  std::vector<std::unique_ptr<trace::Writer>> writers_;
};

}  // namespace cadenza::app
