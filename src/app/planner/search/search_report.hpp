// SPDX-License-Identifier: Apache-2.0
// What placement auto says of its search.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/planner/search/candidates.hpp"
#include "app/planner/search/search.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/simulate/simulator.hpp"

namespace cadenza::app {

/// What became of a candidate.
enum class Outcome {
  bound,      ///< its bound says that it is slower
  slower,     ///< its estimate does
  late,       ///< its estimate says that it might be the best; no time was left
  untried,    ///< its bound does not say that it is slower; no time was left
  too_large,  ///< it does not fit
  simulated,  ///< in full
};

/// A candidate that was looked at.
struct Judged {
  Candidate candidate;
  std::size_t plans = 0;   ///< equal numbers: equal plans
  double model_flops = 0;  ///< of the step: its documents depend on the microbatch
  double bound = 0;        ///< seconds
  std::int64_t bytes = 0;  ///< of the fullest rank; where no plans were made, at least
  std::int64_t fixed = 0;  ///< bytes that do not depend on plans
  std::string fullest;     ///< what takes most of the bytes
  Outcome outcome = Outcome::bound;
  double expected = 0;  ///< seconds, estimated on a sample; 0: it was not
  std::string sample;   ///< that it was last estimated on
  double work = 0;      ///< that simulating a step takes
  double first = 0;     ///< seconds of the typical step, simulated; 0: it was not
  double seconds = 0;   ///< ... of a step, mean
  double half = 0;      ///< of its 95 % interval; 0: it is not known
  int steps = 1;        ///< that were simulated
  double attention_imbalance = 1;
  StepParts parts;
};

/// Seconds of a step; two digits behind the point where candidates are apart by them.
std::string step_text(double seconds);

StepParts parts_of(const simulate::Result& step);
double imbalance_of(const config::Experiment& e, const simulate::Result& step);

struct SearchReport {
  const config::Experiment& given;
  const config::Machine& machine;
  std::int64_t limit = 0;  ///< bytes of a rank; 0: not known
  std::size_t arrangements = 0;
  double tokens = 0;             ///< of the step
  std::vector<Judged> ranked;    ///< simulated, best first
  std::optional<StepRatio> cad;  ///< the best without cad over the best with it
  std::vector<Judged> too_large;
  /// Of each arrangement that was not simulated the most promising: by estimate, where it has one.
  std::vector<Judged> others;
};

/// The table, at most 80 columns wide.
std::string describe(const SearchReport& report);

/// What was simulated, best first, and what was not.
std::vector<Considered> considered(const SearchReport& report);

}  // namespace cadenza::app
