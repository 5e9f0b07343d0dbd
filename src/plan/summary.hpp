// SPDX-License-Identifier: Apache-2.0
// A step's ticks added up: what table and JSON both end with.
#pragma once

#include <vector>

#include "cadenza/plan/cost.hpp"
#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

struct Summary {
  Plan total;  ///< cost and bytes per rank summed over ticks; the first tick's pool; no stages
  Prediction prediction;  ///< summed over ticks, at the nominal rates of CostModel
};

Summary summarize(const std::vector<Plan>& ticks);

}  // namespace cadenza::plan
