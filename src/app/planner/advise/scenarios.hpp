// SPDX-License-Identifier: Apache-2.0
// How an answer changes where an assumption does: the best candidate with core attention
// disaggregation and the best without it, with another network, a slow device, other documents.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "app/planner/search/candidates.hpp"
#include "app/planner/search/search.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"

namespace cadenza::app {

/// A candidate's steps in a scenario.
struct Outlook {
  double seconds = 0;  ///< of a step; 0: the layout does not allow the scenario
  bool fits = true;    ///< into the memory of a rank
};

struct Scenario {
  const char* key;   ///< "network_half"
  std::string what;  ///< "network half as fast"
  Outlook with, without;
  /// The time without over that with, 95 % interval; null where one of them is missing.
  std::optional<StepRatio> cad;
};

/// The contenders of the scenarios; null: none was simulated.
struct Contenders {
  const Considered* with = nullptr;
  const Considered* without = nullptr;
};

/// Simulates a few equal steps of every scenario, on all cores. The first is the question itself,
/// of which the search has simulated more steps: times and ratios of the others are its own times
/// what changes over the few steps (a ratio estimate with an auxiliary variable; Cochran, Sampling
/// Techniques, 1977, chapter 6), with an interval by the jackknife.
/// @param given  the question, with placement auto
/// @param cad    what the search says of the contenders
/// @param show   told how many simulations are done, of how many; by one thread at a time
/// @throws Error(usage, data)
std::vector<Scenario> scenarios_of(const config::Experiment& given, const config::Machine& machine,
                                   const Contenders& contenders,
                                   const std::optional<StepRatio>& cad,
                                   const std::function<void(int done, int of)>& show);

}  // namespace cadenza::app
