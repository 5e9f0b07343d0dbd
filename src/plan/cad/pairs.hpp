// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cadenza/config/experiment.hpp"
#include "plan/cad/document_shard.hpp"
#include "plan/cad/loads.hpp"
#include "plan/assemble.hpp"
#include "plan/cad/residency.hpp"
#include "plan/cad/score.hpp"

namespace cadenza::plan {

/// The first phase: items of whole pairs go from servers above the mean to servers below it, the
/// largest balance per byte first. Starts from the homes; updates `loads` and `residency`; returns
/// who computes what.
/// - two_sided: the server that lacks most takes, from those above the tolerance first, until all
///   are within it or no pair fits;
/// - one_sided: the rule of DistCA's code: every server below the mean takes once, those that
/// lacked
///   most at first come first, until it lacks no more than the tolerance. Givers are not bounded.
std::vector<Assignment> balance_pairs(const Workload& workload,
                                      const std::vector<DocumentShard>& shards,
                                      const config::Attention& attention, Loads& loads,
                                      Residency& residency);

}  // namespace cadenza::plan
