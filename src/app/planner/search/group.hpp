// SPDX-License-Identifier: Apache-2.0
// What a search looks at together: a layout with a placement, and its variants; and what looking
// takes, in operations of a clock: the same on every host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "app/planner/search/candidates.hpp"
#include "app/planner/search/search_report.hpp"
#include "cadenza/program/step_plan.hpp"

namespace cadenza::app {

/// A layout with a placement: one set of plans for all of its variants.
struct Group {
  Candidate arrangement;
  std::size_t family = 0;        ///< equal numbers: apart by the microbatch only
  bool leads = false;            ///< the family, by bound
  std::vector<Judged> variants;  ///< by bound
  double expected = 0;           ///< seconds of the fastest variant; before any look its bound
  double work = 0;               ///< that simulating it will take
  std::size_t looks = 0;
  bool settled = false;  ///< simulated, too large, or there is no time for it
  bool disaggregates() const { return app::disaggregates(arrangement); }
};

/// Estimates over bounds: the least that was seen of a layout, whose placements without cad differ
/// little, or else of a placement with a pipeline or without, as what bounds leave out is alike.
class Ratios {
 public:
  explicit Ratios(std::span<const Group> groups);
  /// Of a group that was not looked at; 1: none like it was.
  double of(const Group& group) const;

 private:
  using Kind = std::pair<config::PlacementKind, bool>;
  using Layout = std::array<std::int64_t, 6>;
  static Kind kind_of(const Group& group);
  static Layout layout_of(const Group& group);
  std::map<Kind, double> of_kinds_;
  std::map<Layout, double> of_layouts_;
};

/// A pool of cad.
struct PoolOf {
  const Group* group = nullptr;  ///< null: no pool has many servers
  int servers = 0;               ///< of those, at most 1024
};

/// Of the pools with more than 128 servers the most promising one whose tick is planned quickly, or
/// the quickest.
PoolOf pool_of_many(std::span<const Group> groups, const config::Experiment& given);

using StepPlans = std::vector<program::TickPlans>;

/// Operations of plans and of the clocks that go through so many operations.
double work_of(const StepPlans& tick_plans, double operations);

/// Of the first sample, before its plans are made: entries by rank and source of keys.
double work_of_sample(const config::Experiment& e);

}  // namespace cadenza::app
