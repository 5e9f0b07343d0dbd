// SPDX-License-Identifier: Apache-2.0
// What placement auto says of its search.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cadenza/config/machine.hpp"
#include "cadenza/simulate/simulator.hpp"
#include "candidates.hpp"

namespace cadenza::app {

/// A step in parts that add up to it, in seconds, means over the ranks.
struct StepParts {
  double attention = 0;
  double imbalance = 0;  ///< attention of the busiest rank beyond the mean
  double dense = 0;      ///< all other computation
  double exposed = 0;    ///< the rest: messages, collectives, pipeline bubbles
};

/// A candidate that was looked at.
struct Judged {
  Candidate candidate;
  double bound = 0;        ///< seconds
  std::int64_t bytes = 0;  ///< of the fullest rank; where no plans were made, at least
  std::string fullest;     ///< what takes most of them
  double seconds = 0;      ///< 0: not simulated, as it does not fit
  double attention_imbalance = 1;
  StepParts parts;
};

StepParts parts_of(const simulate::Result& step);

struct SearchReport {
  const config::Experiment& given;
  const config::Machine& machine;
  std::int64_t limit = 0;  ///< bytes of a rank; 0: not known
  std::size_t arrangements = 0;
  int simulated = 0;
  std::size_t slower = 0;      ///< arrangements whose bound is no less than what was found
  std::size_t untried = 0;     ///< arrangements beyond the most that are simulated
  double tokens = 0;           ///< of the step
  std::vector<Judged> ranked;  ///< simulated, best first
  std::vector<Judged> too_large;
};

/// The table, at most 80 columns wide.
std::string describe(const SearchReport& report);

}  // namespace cadenza::app
