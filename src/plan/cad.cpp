// SPDX-License-Identifier: Apache-2.0
// Placement `cad`: core attention disaggregation (DistCA, arXiv 2510.18121, section 4.2 and
// appendix B), with the tolerance held on both sides and resident keys not charged again.
#include <utility>

#include "assemble.hpp"
#include "cad_blocks.hpp"
#include "cad_pairs.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/plan/placement.hpp"

namespace cadenza::plan {

Plan cad(const Workload& workload, std::int64_t block, double tolerance) {
  if (workload.servers.empty()) {
    fail(ExitCode::usage, "placement: found no attention server, need at least 1");
  }
  if (block < 1) fail(ExitCode::usage, "attention.block: found {}, valid: 1 or more tokens", block);
  if (!(tolerance >= 0)) {
    fail(ExitCode::usage, "attention.tolerance: found {}, valid: 0 or more", tolerance);
  }
  const Homes homes(workload);
  Loads loads(workload, tolerance);
  Traffic traffic(workload, homes);
  std::vector<Assignment> assignments = balance_pairs(workload, homes, block, loads, traffic);
  coalesce(assignments);
  refine_blocks(workload, block, loads, traffic, assignments);
  return assemble(workload, homes, std::move(assignments));
}

}  // namespace cadenza::plan
