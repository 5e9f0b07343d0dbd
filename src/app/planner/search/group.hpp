// SPDX-License-Identifier: Apache-2.0
// What a search looks at together: a layout with a placement, and its variants; and what looking
// takes, in operations of a clock: the same on every host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "app/planner/search/candidates.hpp"
#include "app/planner/search/search_report.hpp"
#include "cadenza/program/step_plan.hpp"

namespace cadenza::app {

/// A layout with a placement: one set of plans for all of its variants.
struct Group {
  Candidate arrangement;
  std::size_t family = 0;        ///< equal numbers: one layout, with cad or without
  bool spare = false;            ///< the one before with fewer rows, should that not fit
  std::vector<Judged> variants;  ///< by bound
  double expected = 0;           ///< seconds of the fastest variant; before any look its bound
  double work = 0;               ///< that simulating it will take
  std::size_t looks = 0;
  bool settled = false;  ///< simulated, too large, or there is no time for it
  bool disaggregates() const { return app::disaggregates(arrangement); }
};

/// Estimates, or what was simulated, over bounds, as what bounds leave out is alike: the least that
/// was seen of a layout with cad, or without, times the least that the placement took there of
/// others; of an unknown layout the least of the placement, with a pipeline or without, in context
/// groups of at least half as many ranks or else the largest: larger ones take more messages.
class Ratios {
 public:
  explicit Ratios(std::span<const Group> groups);
  /// Of a group that was not looked at; 1: none like it was.
  double of(const Group& group) const;
  /// Seconds, about; infinite: nothing was looked at.
  double least() const { return least_; }
  bool knows_layout_of(const Group& group) const { return of_families_.contains(group.family); }

 private:
  using Kind = std::tuple<config::PlacementKind, config::Overlap, bool>;
  double of_kind(const Group& group) const;
  static Kind kind_of(const Group& group);
  std::map<Kind, std::map<std::int64_t, double>> of_kinds_;  ///< by context
  std::map<std::size_t, double> of_families_;
  double least_ = std::numeric_limits<double>::infinity();
  std::map<Kind, double> in_families_;  ///< times the least of a family
};

using StepPlans = std::vector<program::TickPlans>;

/// Operations of plans and of the clocks that go through so many operations.
double work_of(const StepPlans& tick_plans, double operations);

/// Of the first sample, before its plans are made: about.
double work_of_sample(const config::Experiment& e);

}  // namespace cadenza::app
