// SPDX-License-Identifier: Apache-2.0
// Placements: pure functions from a tick's workload to its plan. One file per placement in
// src/plan/placements.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/cost/rates.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

/// What a context group (workload.context consecutive ranks) computes in a tick: a microbatch, or
/// nothing while its pipeline stage idles.
using Occupant = const data::Microbatch*;

/// The workload of groups that run at the same time: group g is ranks [g * context, (g + 1) *
/// context), dedicated servers follow the last one. Tokens are shared inside a group as the
/// placement wants them: src/plan/workload/sharding.hpp.
/// @param dedicated  attention servers beside the trainers; they alone serve unless
/// attention.mixed
/// @param capacities  of all ranks (Workload::capacities): homes are in proportion, but for stripes
Workload make_workload(const config::Experiment& experiment, std::span<const Occupant> groups,
                       int dedicated, std::vector<std::int64_t> capacities = {});

/// Fills Workload::density where attention is sparse, with what is expected of the workload's
/// layers.
void weigh(Workload& workload, const SparseEstimate& estimate);

/// The two halves of a workload in ping-pong: the same homes, the first and the last queries of
/// every document. A rank's rows of the first half come first. @see Workload::queries
/// @throws Error(usage) where tokens are counted in stripes: there the first ones see later keys
std::array<Workload, 2> halves(const Workload& workload);

/// Plans a tick with the placement that `attention` names; `automatic` must have been resolved.
/// Where attention.tolerance is auto, cad takes the one whose tick is predicted to be fastest on
/// the pool (layer_seconds), the same for all parts.
/// @param parts  of the tick: the whole, or its halves in ping-pong
std::vector<Plan> make_plans(const config::Attention& attention, std::span<const Workload> parts,
                             const cost::Pool& pool);
/// Of a tick in one part, at nominal rates.
Plan make_plan(const config::Attention& attention, const Workload& workload);

/// Every task runs on its query's home rank (or, with dedicated servers, trainer t's on server t
/// mod N). In a context group it is `all_gather` of what is seen.
Plan colocated(const Workload& workload);

/// Context placements. All compute on the ranks of the group that has the tokens, which must serve.

/// Keys and values come all at once: those that the rank's queries see, or, as the collective of
/// published systems brings them, all from the first to the last that a query of the group sees.
Plan all_gather(const Workload& workload, config::Gather gather);

/// Keys and values go round the group, rank by rank: ring, zigzag, striped and block-striped
/// attention, as homes and order have it.
Plan ring(const Workload& workload);

/// Rings of `inner_ring` ranks, a node each, inside a ring of nodes.
/// @throws Error(usage) where inner_ring does not divide workload.context
Plan double_ring(const Workload& workload, std::int64_t inner_ring);

/// Heads instead of tokens (DeepSpeed-Ulysses).
/// @throws Error(usage) where workload.context does not divide the heads
Plan ulysses(const Workload& workload);

/// Heads over groups of `head_parallel` ranks, a ring over these groups.
/// @throws Error(usage) where head_parallel does not divide workload.context and the heads
Plan ulysses_ring(const Workload& workload, std::int64_t head_parallel);

/// Core attention disaggregation (DistCA, arXiv 2510.18121, section 4.2 and appendix B): head-tail
/// items in blocks move from servers above the mean to servers below it, by balance gained per byte
/// moved, until every server is within `attention.tolerance` of the mean. Of `attention` it reads
/// block, tolerance, bound, priority and split_keys; tasks are cut along their keys where that is
/// faster on the pool.
Plan cad(const Workload& workload, const config::Attention& attention, const cost::Pool& pool);
/// At nominal rates.
Plan cad(const Workload& workload, const config::Attention& attention);

}  // namespace cadenza::plan
