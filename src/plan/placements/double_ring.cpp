// SPDX-License-Identifier: Apache-2.0
// Placement `double_ring`: rings of `window` ranks, a node each, inside a ring of nodes
// (LoongTrain, arXiv 2406.18485). A rank sends as many keys as in one flat ring, but only once per
// node to the next one.
#include "cadenza/base/error.hpp"
#include "cadenza/plan/placement.hpp"
#include "ring_plan.hpp"

namespace cadenza::plan {

Plan double_ring(const Workload& workload, std::int64_t window) {
  if (window < 1 || workload.context % window != 0) {
    fail(ExitCode::usage, "attention.window: found {}, valid: a divisor of parallel.context = {}",
         window, workload.context);
  }
  return ring_plan(workload, {1, static_cast<int>(window)});
}

}  // namespace cadenza::plan
