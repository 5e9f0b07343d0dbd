// SPDX-License-Identifier: Apache-2.0
// Placements: pure functions from a tick's workload to its plan. One file per placement in
// src/plan; nothing outside plan/ knows their names.
#pragma once

#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

/// The pool of an experiment: all trainers in place, or the dedicated ranks that follow them.
std::vector<Rank> attention_servers(const config::Experiment& experiment);

/// Microbatches that run at the same time: one per data-parallel rank.
/// @param tick  microbatch index on every data-parallel rank, in [0, microbatches / parallel.data)
Workload make_workload(const config::Experiment& experiment, const data::Batch& batch, int tick);

/// Plans a tick with the placement that `attention` names.
Plan make_plan(const config::Attention& attention, const Workload& workload);

/// Every task runs on its query's home rank (or, with dedicated servers, trainer t's on server t
/// mod N).
Plan colocated(const Workload& workload);

/// Core attention disaggregation (DistCA, arXiv 2510.18121, section 4.2 and appendix B): head-tail
/// items in blocks move from servers above the mean to servers below it, by balance gained per byte
/// moved, until every server is within `tolerance` of the mean, on both sides.
Plan cad(const Workload& workload, std::int64_t block, double tolerance);

}  // namespace cadenza::plan
