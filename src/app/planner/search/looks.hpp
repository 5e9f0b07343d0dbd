// SPDX-License-Identifier: Apache-2.0
// Looks of a search at a group of candidates: at a part of their steps, or at all of them.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/planner/predict/sample.hpp"
#include "app/planner/search/group.hpp"
#include "app/planner/search/room.hpp"
#include "app/planner/search/typical_steps.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"

namespace cadenza::app {

/// Estimates may be that much too high.
inline constexpr double kDoubt = 1.1;
inline constexpr double kDoubtOfCheap = 1.6;  ///< ... where to simulate costs little

class Looks {
 public:
  using Show = std::function<void(const Candidate&, const std::string& found)>;

  /// All have to outlive this.
  /// @param given  of all candidates
  Looks(const config::Experiment& given, const config::Machine& machine, TypicalSteps& steps,
        Room& room, Show show)
      : given_(given), machine_(machine), steps_(steps), room_(room), show_(std::move(show)) {}

  /// The seconds that a group may be expected to take and still win.
  double most_of(const Group& group) const;

  /// Estimates on a larger part of a step than before. Returns the work of it; none where all
  /// larger parts were looked at. Changes only the group: several threads may look at others.
  std::optional<double> at_part(Group& group);

  /// Simulates the typical steps. Variants with the same plans are apart by what estimates say:
  /// where a clock takes long, those that an estimate has behind one of them need none.
  void at_all(Group& group);

  std::vector<Judged> simulated;
  double best = std::numeric_limits<double>::infinity();  ///< seconds, simulated
  double work = 0;  ///< of simulations, and what was added for others

 private:
  template <class Look>
  void first_that_fit(Group& group, Look look_at);
  double estimate_by(Group& group, SampleSize size);
  void simulate(Judged& judged, std::vector<StepPlans>& plans);
  bool add_step(Judged& mean, const PackedStep& packed, StepPlans& tick_plans);

  const config::Experiment& given_;
  const config::Machine& machine_;
  TypicalSteps& steps_;
  Room& room_;
  Show show_;
};

}  // namespace cadenza::app
