// SPDX-License-Identifier: Apache-2.0
// All that a rank needs to know to run a step, made before the step begins (on a thread of its own,
// while the previous step runs).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/plan/placement.hpp"
#include "cadenza/program/program.hpp"

namespace cadenza::program {

struct StepPlan {
  data::Batch batch;
  std::vector<TickPlans> ticks;
  Program program;
  std::uint64_t hash = 0;  ///< of all plans: equal on all ranks or the run stops
};

/// Pure and thread-safe.
/// @param machine  that plans are predicted for; nominal where none is given
/// @param estimate  of sparse attention, from earlier steps, the same on all ranks
/// @throws Error(usage) when a placement made an invalid plan.
StepPlan plan_step(const config::Experiment& experiment, const data::Packer& packer, Rank rank,
                   std::int64_t step, const config::Machine& machine = {},
                   const SparseEstimate& estimate = {});

/// What a step computes: in the first attention.sparse.dense_steps all attention is dense.
config::Experiment experiment_of_step(config::Experiment experiment, std::int64_t step);

/// By what the plans of a step weigh the rows of sparse documents: "budgets", "steps up to 7";
/// empty where attention is dense.
std::string describe_estimate(const config::Experiment& experiment, std::int64_t step,
                              const SparseEstimate& estimate);

/// Plans of a step for all ranks of a pool, without programs (cadenza plan, dry runs): PlanIndex.
/// All pools have the same.
std::vector<TickPlans> plan_ticks(const config::Experiment& experiment, const data::Batch& batch,
                                  const config::Machine& machine = {},
                                  const SparseEstimate& estimate = {});

/// The plans of one tick: one, or those of both halves in ping-pong.
/// @param first_document  by context group
std::vector<TickPlans> plan_tick(const config::Attention& attention, const plan::Workload& whole,
                                 const std::vector<int>& first_document, const cost::Pool& pool);

/// What a pool computes while its context groups hold these microbatches, with the capacities of
/// its ranks; @see plan::make_workload
plan::Workload make_workload(const config::Experiment& experiment, const Layout& layout,
                             std::span<const plan::Occupant> groups);

/// By context group of a workload: number of its first document.
std::vector<int> first_documents(std::span<const plan::Occupant> groups);

/// The microbatch of a step that a data-parallel rank counts as its `microbatch`-th.
const data::Microbatch& microbatch_of(const Layout& layout, const data::Batch& batch, int data,
                                      int microbatch);

/// What budgets of single heads allow, as steps would show it; empty where all have the same.
/// @param lengths  of a step's documents
SparseEstimate estimate_of_budgets(const config::Experiment& experiment,
                                   std::span<const std::int64_t> lengths);

/// What a step did, the same on all ranks.
struct StepResult {
  double loss = 0;           ///< mean over the step's targets, before the update
  double gradient_norm = 0;  ///< before clipping
  double learning_rate = 0;
  std::int64_t answers = 0;  ///< to questions of documents (source retrieval)
  std::int64_t hits = 0;     ///< answers that were the model's first choice
  /// What sparse attention kept: rows of the tensor rank with most of them, sums of all heads.
  SparseCounts sparse;
  /// Share of their attention that sampled queries of sparse documents have kept, over the heads of
  /// one layer of the model; the next step samples the next one.
  struct Recall {
    int layer = 0;
    double share = 0;
  };
  std::optional<Recall> recall;
};

}  // namespace cadenza::program
