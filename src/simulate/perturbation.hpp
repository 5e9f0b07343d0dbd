// SPDX-License-Identifier: Apache-2.0
// Deviations of ranks from the machine file: the cluster block's spread, jitter, slow ranks and
// faults. They depend only on (seed, step, rank, operation), not on the order of the simulation.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "cadenza/base/range.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/program/program.hpp"

namespace cadenza::simulate {

class Perturbation {
 public:
  /// @param step  number in the run: jitter differs from step to step, and faults may
  Perturbation(const config::Experiment& experiment, std::int64_t step);

  /// Chooses the operations in which the program's rank pauses (faults of kind pause).
  /// @param computes  whether the rank computes anything in an operation
  void place_pauses(const program::Program& program,
                    const std::function<bool(const program::Instruction&)>& computes);

  /// Seconds that a rank's `number`-th operation takes if the machine needs `seconds`.
  double seconds(Rank rank, std::size_t number, const program::Instruction& instruction,
                 double seconds) const;

  /// Of the `taken` seconds of such an operation those in which the rank stands still.
  double still(Rank rank, std::size_t number, const program::Instruction& instruction,
               double taken) const;

 private:
  double pause(Rank rank, std::size_t number) const;
  double core(Rank rank, const program::Instruction& instruction) const;

  std::uint64_t seed_;
  double jitter_;
  std::vector<double> rank_;           ///< factor on all times of a rank; empty: all are alike
  std::vector<config::Fault> faults_;  ///< of this step
  std::map<std::pair<Rank, std::size_t>, double> pauses_;  ///< seconds, by rank and number
};

}  // namespace cadenza::simulate
