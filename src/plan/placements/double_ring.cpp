// SPDX-License-Identifier: Apache-2.0
// Placement `double_ring`: rings of `inner_ring` ranks, a node each, inside a ring of nodes
// (LoongTrain, arXiv 2406.18485). A rank sends as many keys as in one flat ring, but only once per
// node to the next one.
#include "cadenza/base/error.hpp"
#include "cadenza/plan/placement.hpp"
#include "plan/placements/ring_plan.hpp"

namespace cadenza::plan {

Plan double_ring(const Workload& workload, std::int64_t inner_ring) {
  if (inner_ring < 1 || workload.context % inner_ring != 0) {
    fail(ExitCode::usage,
         "attention.inner_ring: found {}; valid: a divisor of parallel.context = {}", inner_ring,
         workload.context);
  }
  return ring_plan(workload, {1, static_cast<int>(inner_ring)});
}

}  // namespace cadenza::plan
