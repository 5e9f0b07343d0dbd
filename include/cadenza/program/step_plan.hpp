// SPDX-License-Identifier: Apache-2.0
// Everything that a rank needs to run a step: batch, plans and program. It is made before the step
// begins, on a thread of its own, while the previous step runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cadenza/base/recall.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/plan/placement.hpp"
#include "cadenza/program/layer_classes.hpp"
#include "cadenza/program/program.hpp"

namespace cadenza::program {

struct StepPlan {
  data::Batch batch;
  const data::Corpus* corpus = nullptr;  ///< of the batch; null: the one of training
  std::vector<TickPlans> tick_plans;
  Program program;
  /// The patterns of sparse documents that the step chooses are kept for later steps.
  bool keeps_patterns = false;
  std::uint64_t hash = 0;  ///< hash of all plans; the run stops unless all ranks have the same
};

/// Plans a step for a rank. Pure and thread-safe.
/// @param machine  machine for which plans are predicted; nominal by default
/// @param estimate  estimate of sparse attention from earlier steps, the same on all ranks
/// @param reused  Workload::reused
/// @throws Error(usage) when a placement made an invalid plan.
StepPlan plan_step(const config::Experiment& experiment, const data::Packer& packer, Rank rank,
                   std::int64_t step, const config::Machine& machine = {},
                   const SparseEstimate& estimate = {},
                   const std::vector<std::int64_t>& reused = {});

/// Says which steps choose patterns, and what the others reuse (attention.sparse.refresh). Steps
/// come in their order.
class PatternChoice {
 public:
  explicit PatternChoice(const config::SparseAttention& sparse) : sparse_(sparse) {}
  /// Returns whether a step chooses patterns that later ones reuse: each multiple of `refresh`, and
  /// the first sparse step of this process.
  bool chooses(std::int64_t step) const;
  /// Takes the documents of a step that chooses.
  void chose(const data::Batch& batch);
  /// Returns the last step up to this one that chooses in a run that begins with step 0; -1: none.
  std::int64_t last_choice(std::int64_t step) const;
  /// Returns Workload::reused of a step.
  std::vector<std::int64_t> reused(std::int64_t step) const;

 private:
  config::SparseAttention sparse_;
  std::vector<std::int64_t> lengths_;  ///< of the documents whose patterns were kept; ascending
};

/// The experiment of a step: in the first attention.sparse.dense_steps steps attention is dense.
config::Experiment experiment_of_step(config::Experiment experiment, std::int64_t step);

/// The basis on which the plans of a step weigh the rows of sparse documents: "budgets", "all
/// pairs", "steps up to 7"; empty where attention is dense.
std::string describe_estimate(const config::Experiment& experiment, std::int64_t step,
                              const SparseEstimate& estimate);

/// Plans of a step for all ranks of a pool, without programs (cadenza plan, dry runs), in the order
/// of PlanIndex. All pools have the same plans.
std::vector<TickPlans> plan_ticks(const config::Experiment& experiment, const data::Batch& batch,
                                  const config::Machine& machine = {},
                                  const SparseEstimate& estimate = {},
                                  const std::vector<std::int64_t>& reused = {});

/// Plans the ticks of a step one by one, for those who plan on several threads or need only some.
class TickPlanner {
 public:
  /// @param experiment, batch, reused  as plan_step(); they have to outlive this
  TickPlanner(const config::Experiment& experiment, const data::Batch& batch,
              const config::Machine& machine, const SparseEstimate& estimate = {},
              const std::vector<std::int64_t>& reused = {});
  std::size_t ticks() const { return ticks_.size(); }
  /// The part of plan_ticks() that is of a tick. Pure and thread-safe.
  std::vector<TickPlans> plan(std::size_t tick) const;

 private:
  const config::Experiment& experiment_;
  const data::Batch& batch_;
  StepShape step_shape_;
  cost::Pool pool_;
  std::vector<Tick> ticks_;
  SparseEstimate estimate_;
  std::vector<LayerClass> classes_;
  std::vector<std::int64_t> reused_;
};

/// The plans of one tick: one, or two halves in ping-pong.
/// @param first_document  by context group: TickPlans::first_document
std::vector<TickPlans> plan_tick(const config::Attention& attention, const plan::Workload& whole,
                                 const std::vector<int>& first_document, const cost::Pool& pool);

/// The workload of a pool whose context groups hold these microbatches, with the capacities of its
/// ranks; @see plan::make_workload
plan::Workload make_workload(const config::Experiment& experiment, const Layout& layout,
                             std::span<const plan::Occupant> groups);

/// By context group of a workload: index of its first document.
std::vector<int> first_documents(std::span<const plan::Occupant> groups);

/// The `microbatch`-th microbatch of a data-parallel rank in a step.
const data::Microbatch& microbatch_of(const Layout& layout, const data::Batch& batch, int data,
                                      int microbatch);

/// The estimate that budgets of single heads allow; empty where all heads have the same budget.
/// @param lengths  lengths of a step's documents
SparseEstimate estimate_of_budgets(const config::Experiment& experiment,
                                   std::span<const std::int64_t> lengths);

/// The result of a step, the same on all ranks.
struct StepResult {
  double loss = 0;           ///< mean over the step's targets, before the update
  double gradient_norm = 0;  ///< before clipping
  double learning_rate = 0;
  std::int64_t answers = 0;  ///< answers to questions of documents (source retrieval)
  std::int64_t hits = 0;     ///< answers that were the model's first choice
  /// Pairs that sparse attention kept: `rows` are those of the tensor rank that kept most, the sums
  /// are over all heads.
  SparseCounts sparse;
  /// What sparse attention kept in one layer of the model; each step samples the next layer.
  struct LayerRecall {
    int layer = 0;
    Recall recall;
  };
  std::optional<LayerRecall> recall;
};

/// Losses of a document's targets.
struct DocumentLoss {
  double targets = 0;
  double hits = 0;  ///< targets that were the model's first choice
  double loss = 0;  ///< sum of their cross-entropies
};

}  // namespace cadenza::program
