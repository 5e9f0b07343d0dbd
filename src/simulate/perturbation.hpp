// SPDX-License-Identifier: Apache-2.0
// How ranks differ from the machine file: the cluster block's spread, jitter, slow ranks and
// faults. All of it is given by (seed, step, rank, operation), whatever order the clock goes in.
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
  /// @param step  of the run: jitter differs from step to step, and faults may
  Perturbation(const config::Experiment& experiment, std::int64_t step);

  /// Chooses the operations in which the program's rank stops for the faults that are pauses.
  /// @param computes  whether the rank has something to compute in an operation
  void place_pauses(const program::Program& program,
                    const std::function<bool(const program::Step&)>& computes);

  /// Seconds for which a rank stops in its `number`-th operation.
  double pause(Rank rank, std::size_t number) const;

  /// What an operation takes of which the machine needs `seconds`: the rank's `number`-th.
  double seconds(Rank rank, std::size_t number, const program::Step& operation,
                 double seconds) const;

 private:
  std::uint64_t seed_;
  double jitter_;
  std::vector<double> rank_;           ///< factor on all that a rank does; empty: all are alike
  std::vector<config::Fault> faults_;  ///< of this step
  std::map<std::pair<Rank, std::size_t>, double> pauses_;  ///< seconds, by rank and number
};

}  // namespace cadenza::simulate
