// SPDX-License-Identifier: Apache-2.0
// Placements `ring`, `zigzag`, `striped` and `block_striped`: queries stay, keys and values go
// round the context group. They differ in where tokens live and in what order they are counted
// alone, so homes and workload.order say which of them it is (Ring Attention, arXiv 2310.01889;
// Striped Attention, arXiv 2311.09431).
#include "cadenza/plan/placement.hpp"
#include "plan/placements/ring_plan.hpp"

namespace cadenza::plan {

Plan ring(const Workload& workload) {
  return ring_plan(workload, {1, workload.context});
}

}  // namespace cadenza::plan
