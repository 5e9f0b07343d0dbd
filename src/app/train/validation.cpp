// SPDX-License-Identifier: Apache-2.0
#include "app/train/validation.hpp"

#include <algorithm>

#include "app/evaluate/scoring.hpp"
#include "app/planner/corpus.hpp"
#include "app/runtime/failure.hpp"
#include "app/runtime/signals.hpp"
#include "cadenza/program/step_plan.hpp"

namespace cadenza::app {

Validation::Validation(const config::Experiment& training, const config::Machine& machine,
                       const exec::MemoryLimit& memory_limit, bool speaks)
    : training_(training),
      experiment_(scoring(training)),
      machine_(machine),
      memory_limit_(memory_limit),
      corpus_(open_corpus(training, speaks, data::Part::validation)),
      packer_(*corpus_, experiment_),
      steps_(steps_of_pass(experiment_, *corpus_)) {
  const std::int64_t most = training.run.validate.steps;
  if (most > 0) steps_ = std::min(steps_, most);
}

bool Validation::is_due(std::int64_t updates) const {
  return updates % training_.run.validate.every == 0 || updates == training_.run.steps;
}

/// The program has forward passes alone, but runs on the arrays of training.
program::StepPlan Validation::plan(comm::Communicator& world, std::int64_t step,
                                   const SparseEstimate& estimate) const {
  program::StepPlan plan;
  collectively(world, [&] {
    plan = program::plan_step(experiment_, packer_, world.rank(), step, machine_, estimate);
    plan.corpus = corpus_.get();
    exec::require_memory(memory_limit_, world.rank(), training_, plan);
  });
  return plan;
}

template <typename Real>
std::optional<double> Validation::measure(comm::Communicator& world, exec::Executor<Real>& executor,
                                          const SparseEstimate& estimate) const {
  ScoredOnce scored;
  double loss = 0, targets = 0;
  for (std::int64_t step = 0; step < steps_; ++step) {
    std::int64_t signal = StopSignals::caught();
    world.all_reduce(std::span(&signal, 1), comm::Reduction::max);
    if (signal != 0) return std::nullopt;
    program::StepPlan plan = this->plan(world, step, estimate);
    scored.mark(plan.batch, experiment_.batch.packing);
    const auto some = static_cast<double>(plan.batch.targets());
    if (some == 0) continue;
    loss += executor.run(plan).loss * some;
    targets += some;
  }
  return loss / std::max(1.0, targets);
}

template std::optional<double> Validation::measure(comm::Communicator&, exec::Executor<bfloat16>&,
                                                   const SparseEstimate&) const;
template std::optional<double> Validation::measure(comm::Communicator&, exec::Executor<float>&,
                                                   const SparseEstimate&) const;
template std::optional<double> Validation::measure(comm::Communicator&, exec::Executor<double>&,
                                                   const SparseEstimate&) const;

}  // namespace cadenza::app
