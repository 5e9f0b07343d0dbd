// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cadenza/plan/plan.hpp"
#include "plan/workload/homes.hpp"

namespace cadenza::plan {

/// Every output row of workload.queries with its owner and all servers that compute a part of it,
/// as few rectangles as their edges allow: ascending by (document, head, token).
std::vector<Merge> make_merges(const Workload& workload, const Homes& homes,
                               const std::vector<Stage>& stages);

}  // namespace cadenza::plan
