// SPDX-License-Identifier: Apache-2.0
// Placement `ulysses_ring`: heads over `head_parallel` neighbouring ranks, a ring over such groups
// (USP, arXiv 2405.07719; the 2-D attention of LoongTrain, arXiv 2406.18485).
#include "cadenza/base/error.hpp"
#include "cadenza/plan/placement.hpp"
#include "plan/placements/ring_plan.hpp"

namespace cadenza::plan {

Plan ulysses_ring(const Workload& workload, std::int64_t head_parallel) {
  if (head_parallel < 1 || workload.context % head_parallel != 0 ||
      workload.shape.heads % head_parallel != 0) {
    fail(ExitCode::usage,
         "attention.head_parallel: found {}; valid: a divisor of parallel.context = {} and of the "
         "{} heads",
         head_parallel, workload.context, workload.shape.heads);
  }
  const int slices = static_cast<int>(head_parallel);
  return ring_plan(workload, {slices, workload.context / slices});
}

}  // namespace cadenza::plan
