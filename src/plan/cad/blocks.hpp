// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "plan/cad/loads.hpp"
#include "plan/assemble.hpp"
#include "plan/cad/residency.hpp"

namespace cadenza::plan {

/// The second phase, where whole pairs were too coarse: runs of blocks from the ends of assignments
/// move from servers above the tolerance (to servers below it, from any above the mean) as long as
/// the gap between the two shrinks. Afterwards no server is further above the mean than its
/// tolerance or its cheapest block, whichever is more.
void refine_blocks(const Workload& workload, std::int64_t block, Loads& loads, Residency& residency,
                   std::vector<Assignment>& assignments);

}  // namespace cadenza::plan
