// SPDX-License-Identifier: Apache-2.0
// The registry of placements: the one place that knows their names.
#include "cadenza/plan/placement.hpp"

#include "cadenza/base/error.hpp"

namespace cadenza::plan {
namespace {

Plan place(const config::Attention& attention, const Workload& workload) {
  using config::PlacementKind;
  switch (attention.placement) {
    case PlacementKind::colocated:
      return colocated(workload);
    case PlacementKind::all_gather:
      return all_gather(workload);
    case PlacementKind::ring:
    case PlacementKind::zigzag:
    case PlacementKind::striped:
    case PlacementKind::block_striped:
      return ring(workload);
    case PlacementKind::double_ring:
      return double_ring(workload, attention.inner_ring);
    case PlacementKind::ulysses:
      return ulysses(workload);
    case PlacementKind::ulysses_ring:
      return ulysses_ring(workload, attention.head_parallel);
    case PlacementKind::cad:
      return cad(workload, attention);
    case PlacementKind::automatic:
      break;
  }
  fail(ExitCode::usage,
       "attention.placement: found {}; valid: a placement other than auto, which must be resolved "
       "first",
       static_cast<int>(attention.placement));
}

}  // namespace

Plan make_plan(const config::Attention& attention, const Workload& workload) {
  Plan plan = place(attention, workload);
  plan.keeps_inputs = attention.inputs == config::Inputs::keep;
  return plan;
}

}  // namespace cadenza::plan
