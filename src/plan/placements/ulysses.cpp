// SPDX-License-Identifier: Apache-2.0
// Placement `ulysses` (DeepSpeed-Ulysses, arXiv 2309.14509): every rank of the context group
// computes its share of the heads for the whole sequence. Key-value heads that several ranks read
// go to each of them.
#include "cadenza/base/error.hpp"
#include "cadenza/plan/placement.hpp"
#include "plan/placements/ring_plan.hpp"

namespace cadenza::plan {

Plan ulysses(const Workload& workload) {
  if (workload.shape.heads % workload.context != 0) {
    fail(ExitCode::usage,
         "parallel.context: found {} with placement ulysses; valid: a divisor of the {} heads, or "
         "placement ulysses_ring",
         workload.context, workload.shape.heads);
  }
  return ring_plan(workload, {workload.context, 1});
}

}  // namespace cadenza::plan
