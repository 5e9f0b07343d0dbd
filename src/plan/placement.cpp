// SPDX-License-Identifier: Apache-2.0
// The registry of placements, which alone calls them by name.
#include "cadenza/plan/placement.hpp"

#include <array>
#include <utility>

#include "cadenza/base/error.hpp"
#include "cadenza/plan/index.hpp"
#include "cadenza/plan/predict.hpp"

namespace cadenza::plan {
namespace {

Plan place(const config::Attention& attention, const Workload& workload, const cost::Pool& pool) {
  using config::PlacementKind;
  const bool by_document = attention.shares_by_cost();
  switch (attention.placement) {
    case PlacementKind::colocated:
      return colocated(workload);
    case PlacementKind::all_gather:
      return all_gather(workload, attention.gather);
    case PlacementKind::ring:
    case PlacementKind::zigzag:
    case PlacementKind::striped:
    case PlacementKind::block_striped:
    case PlacementKind::double_ring:
    case PlacementKind::dynamic:
      return ring(workload, attention.inner_ring, by_document);
    case PlacementKind::ulysses:
      return ulysses(workload);
    case PlacementKind::ulysses_ring:
      return ulysses_ring(workload, attention.head_parallel, by_document);
    case PlacementKind::cad:
      return cad(workload, attention, pool);
    case PlacementKind::automatic:
      break;
  }
  fail(ExitCode::usage,
       "attention.placement: found {}; valid: a placement other than auto, which must be resolved "
       "first",
       static_cast<int>(attention.placement));
}

std::vector<Plan> place_all(const config::Attention& attention, std::span<const Workload> parts,
                            const cost::Pool& pool) {
  std::vector<Plan> plans;
  for (const Workload& part : parts) {
    plans.push_back(place(attention, part, pool));
    plans.back().keeps_inputs = attention.inputs == config::Inputs::keep;
    if (part.sparse.block == 0) continue;
    add_index_rounds(plans.back());
    add_totals(plans.back());
  }
  return plans;
}

/// Tolerances that attention.tolerance: auto tries, the one that moves least first: none. Of
/// hundreds of servers, one may have several times the mean, and to move that may cost more than it
/// saves.
constexpr std::array kTolerances = {1e4, 4.0, 2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.02};

/// The plans of the fastest tolerance; ties go to the one that moves less.
std::vector<Plan> fastest_plans(config::Attention attention, std::span<const Workload> parts,
                                const cost::Pool& pool) {
  std::vector<Plan> fastest;
  std::vector<Trial> trials;
  for (const double tolerance : kTolerances) {
    attention.tolerance = tolerance;
    std::vector<Plan> plans = place_all(attention, parts, pool);
    const Trial trial{tolerance, layer_seconds(plans, pool)};
    if (trials.empty() || trial.layer_seconds < trials.front().layer_seconds) {
      trials.insert(trials.begin(), trial);
      fastest = std::move(plans);
    } else {
      trials.push_back(trial);
    }
  }
  for (Plan& plan : fastest) plan.trials = trials;
  return fastest;
}

}  // namespace

std::vector<Plan> make_plans(const config::Attention& attention, std::span<const Workload> parts,
                             const cost::Pool& pool) {
  if (config::disaggregates(attention.placement) && !attention.tolerance) {
    return fastest_plans(attention, parts, pool);
  }
  return place_all(attention, parts, pool);
}

Plan make_plan(const config::Attention& attention, const Workload& workload) {
  const cost::Pool pool = cost::nominal_pool(workload.shape.head_dim);
  return std::move(make_plans(attention, std::span(&workload, 1), pool).front());
}

Plan cad(const Workload& workload, const config::Attention& attention) {
  return cad(workload, attention, cost::nominal_pool(workload.shape.head_dim));
}

}  // namespace cadenza::plan
