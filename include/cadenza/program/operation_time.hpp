// SPDX-License-Identifier: Apache-2.0
// What the operations of a program take at a machine's rates, and what planners know of a machine.
#pragma once

#include <vector>

#include "cadenza/cost/rates.hpp"
#include "cadenza/program/operation_work.hpp"

namespace cadenza::program {

/// Seconds of the products and bytes of an operation.
double seconds_of(const Step& step, const OperationWork& work, const cost::Rates& rates);

/// The operations of a layer outside core attention, both passes.
std::vector<Step> layer_steps(const config::Experiment& experiment);

/// The ranks of pool 0 on a machine, as planners know them: without what is planted in
/// `cluster` to make ranks and links differ (slow ranks and links, faults, jitter).
cost::Pool planning_pool(const config::Experiment& experiment, const config::Machine& machine,
                         const Layout& layout);

}  // namespace cadenza::program
