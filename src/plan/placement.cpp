// SPDX-License-Identifier: Apache-2.0
// The registry of placements: the one place that knows their names.
#include "cadenza/plan/placement.hpp"

#include "cadenza/base/error.hpp"

namespace cadenza::plan {

Plan make_plan(const config::Attention& attention, const Workload& workload) {
  switch (attention.placement) {
    case config::PlacementKind::colocated:
      return colocated(workload);
    case config::PlacementKind::cad:
      return cad(workload, attention.block, attention.tolerance);
  }
  fail(ExitCode::usage, "attention.placement: found an unknown placement ({})",
       static_cast<int>(attention.placement));
}

}  // namespace cadenza::plan
