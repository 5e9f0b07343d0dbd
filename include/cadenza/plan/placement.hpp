// SPDX-License-Identifier: Apache-2.0
// Placements: pure functions from a tick's workload to its plan. src/plan/placements has
// those that compute at home and the rings, src/plan/cad the balancing one.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/cost/rates.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

/// The microbatch that a context group (workload.context consecutive ranks) computes in a tick;
/// null while its pipeline stage idles.
using Occupant = const data::Microbatch*;

/// The workload of groups that run at the same time: group g is ranks [g * context, (g + 1) *
/// context), dedicated servers follow the last group. The ranks of a group share its tokens as the
/// placement requires (src/plan/workload/sharding.hpp).
/// @param dedicated  number of dedicated attention servers; unless attention.mixed only they serve
/// @param capacities  of all ranks (Workload::capacities); ranks get tokens in proportion, except
///                    with stripes
Workload make_workload(const config::Experiment& experiment, std::span<const Occupant> groups,
                       int dedicated, std::vector<std::int64_t> capacities = {});

/// Fills Workload::density, where attention is sparse, with the estimate for the workload's layers.
void weigh(Workload& workload, const SparseEstimate& estimate);

/// Splits a workload into the two halves of ping-pong: both have the same homes; one has the first,
/// the other the last queries of every document (Workload::queries). A rank's rows of the first
/// half come first.
/// @throws Error(usage) where queries of the first half see keys of the second: with stripes, or
///         with a mask that is not causal
std::array<Workload, 2> halves(const Workload& workload);

/// Plans a tick with the placement that `attention` names; `automatic` must have been resolved.
/// Where attention.tolerance is auto, cad takes the tolerance whose tick is predicted to be fastest
/// on the pool (layer_seconds), the same for all parts.
/// @param parts  the whole tick, or its two halves in ping-pong
std::vector<Plan> make_plans(const config::Attention& attention, std::span<const Workload> parts,
                             const cost::Pool& pool);
/// Plans a tick in one part, at nominal rates.
Plan make_plan(const config::Attention& attention, const Workload& workload);

/// Places every task on its query's home rank or, with dedicated servers, tasks of trainer t on
/// server t mod N. In a context group this is `all_gather` of the keys that are seen.
Plan colocated(const Workload& workload);

// --- Context placements: the ranks of the group that has the tokens compute, and must serve ---

/// Moves all keys and values at once: those that the rank's queries see or, like the collective of
/// published systems, all from the first to the last that a query of the group sees.
Plan all_gather(const Workload& workload, config::Gather gather);

/// Passes keys and values round rings of `inner_ring` ranks, one per node, inside a ring of nodes;
/// with 1, as with all ranks of the group, rank by rank round one flat ring. The homes and the
/// order of tokens make it ring, zigzag, striped or block-striped attention.
/// @param by_document  a document's ring has only the ranks that hold a part of it
/// @throws Error(usage) where inner_ring does not divide workload.context
Plan ring(const Workload& workload, std::int64_t inner_ring = 1, bool by_document = false);

/// Splits the heads of the whole sequence over the ranks of a group (DeepSpeed-Ulysses).
/// @throws Error(usage) where workload.context does not divide the heads
Plan ulysses(const Workload& workload);

/// Splits the heads over `head_parallel` ranks, and passes keys round a ring of such groups.
/// @throws Error(usage) where head_parallel does not divide workload.context and the heads
Plan ulysses_ring(const Workload& workload, std::int64_t head_parallel, bool by_document = false);

/// Core attention disaggregation (DistCA, arXiv 2510.18121, section 4.2 and appendix B): moves
/// head-tail items of blocks from servers above the mean to servers below it, largest balance per
/// byte first, until every server is within `attention.tolerance` of the mean. Cuts tasks along
/// their keys where that is predicted to be faster on the pool. Reads block, tolerance, bound,
/// priority and split_keys of `attention`.
Plan cad(const Workload& workload, const config::Attention& attention, const cost::Pool& pool);
/// The cad plan at nominal rates.
Plan cad(const Workload& workload, const config::Attention& attention);

}  // namespace cadenza::plan
