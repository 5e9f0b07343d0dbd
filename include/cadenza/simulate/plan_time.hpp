// SPDX-License-Identifier: Apache-2.0
// What a plan's attention takes on a machine.
#pragma once

#include "cadenza/plan/cost.hpp"
#include "cadenza/program/layout.hpp"
#include "cadenza/simulate/costs.hpp"

namespace cadenza::simulate {

/// plan::predict with a machine's kernels and links instead of nominal rates: forward pass of one
/// layer, the plan's ranks being those of pool 0.
plan::Prediction predict(const plan::Plan& plan, const program::Layout& layout, const Costs& costs);

}  // namespace cadenza::simulate
