// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/executor.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "cadenza/attention/core_attention.hpp"
#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/hash.hpp"
#include "cadenza/exec/memory/estimate.hpp"
#include "cadenza/kernels/matmul.hpp"
#include "cadenza/model/layers.hpp"
#include "cadenza/program/stages.hpp"
#include "exec/collectives/gradients.hpp"
#include "exec/trainer.hpp"

namespace cadenza::exec {
namespace {

using program::Instruction;
using program::OtherEvent;

template <typename Sum>
kernels::RotaryTable<Sum> rotary_table(const config::Experiment& experiment, MemoryLedger& ledger) {
  const auto head_dim = static_cast<int>(experiment.model.head_dim());
  return attention::make_rotary_table<Sum>(
      ledger, table_positions(experiment),
      model::rotary_frequencies(experiment.model.rope, head_dim));
}

/// Returns the rules of a trainer by layer and head; empty if all are the same.
std::vector<std::vector<SparseRule>> head_rules(const config::Experiment& e,
                                                const program::StepShape& step_shape,
                                                Rank trainer) {
  if (e.attention.sparse.heads.empty()) return {};
  const program::Coordinates at = step_shape.layout.coordinates(trainer);
  const std::int64_t heads = e.model.heads / step_shape.layout.tensor();
  std::vector<std::vector<SparseRule>> rules(
      static_cast<std::size_t>(step_shape.layers_of_rank(trainer)));
  for (std::size_t layer = 0; layer < rules.size(); ++layer) {
    const int of_model = step_shape.model_layer(at.pipeline, static_cast<int>(layer));
    for (std::int64_t head = 0; head < heads; ++head) {
      rules[layer].push_back(e.attention.sparse_rule(of_model, at.tensor * heads + head));
    }
  }
  return rules;
}

/// What one rank or several know of a step; added up over all ranks it is the step's. Doubles only.
struct StepSums {
  double loss = 0;
  double gradient_norm = 0, learning_rate = 0;  ///< of rank 0
  double answers = 0, right = 0;
};

/// Returns zero counts for every place (layer, length) for which the step's plans have an index.
SparseCounts planned_counts(const program::StepPlan& plan, int layers) {
  SparseCounts counts;
  for (const program::TickPlans& tick : plan.tick_plans) {
    const plan::Workload& workload = tick.forward.workload;
    std::vector<int> of = workload.layers;
    if (of.empty()) {
      of.resize(static_cast<std::size_t>(layers));
      std::iota(of.begin(), of.end(), 0);
    }
    for (const std::int64_t length : workload.lengths) {
      if (workload.sparse.is_dense(length)) continue;
      for (const int layer : of) counts.rows[SparsePlace::of(layer, length)];
    }
  }
  return counts;
}

/// Returns the layer whose recall a step measures: the sparse layers take turns; -1: all are dense.
int sampled_layer(const config::Experiment& e, std::int64_t step) {
  if (e.attention.sparse_rule().block == 0) return -1;
  std::vector<int> sparse;
  for (int layer = 0; layer < static_cast<int>(e.model.layers); ++layer) {
    if (!e.attention.is_full(layer)) sparse.push_back(layer);
  }
  return sparse[at(step) % sparse.size()];
}

}  // namespace

template <typename Real>
Executor<Real>::Executor(const config::Experiment& experiment, comm::Communicator& world,
                         const data::Corpus& corpus, Tracer& tracer, MemoryLedger& ledger)
    : experiment_(experiment),
      step_shape_(experiment),
      world_(world),
      groups_(std::make_unique<Groups>(world, step_shape_, experiment.run.transport)),
      tracer_(tracer),
      ledger_(ledger),
      activity_(
          world, [&tracer] { return tracer.activity(); },
          [&tracer](std::int64_t now) { tracer.looked(now); }),
      device_wait_(
          [&world](const std::function<bool()>& done) { world.wait_until("the device", done); }),
      rotary_(rotary_table<Sum>(experiment, ledger)) {
  for (int half = 0; half < step_shape_.halves; ++half) {
    exchange_.push_back(std::make_unique<AttentionExchange<Real>>(
        AttentionCommunicators{*groups_->inputs[at(half)], *groups_->results[at(half)]},
        step_shape_.layout.members(step_shape_.layout.pool_of(world.rank())),
        config::attention_shape(experiment.model, step_shape_.layout.tensor(),
                                experiment.run.dtype),
        experiment.attention.kernel, rotary_, half, tracer, ledger));
  }
  if (!step_shape_.layout.trains(world.rank())) return;
  ledger.add(MemoryKind::other, kernels::product_workspace_bytes());
  rules_ = head_rules(experiment_, step_shape_, world.rank());
  trainer_ = std::make_unique<Trainer<Real>>(experiment_, step_shape_, world, *groups_, rotary_,
                                             corpus, tracer, ledger);
}

template <typename Real>
Executor<Real>::~Executor() = default;

template <typename Real>
const model::Parameters<Real>* Executor<Real>::parameters() const {
  return trainer_ ? &trainer_->parameters() : nullptr;
}

template <typename Real>
void Executor<Real>::agree_on_plan(const program::StepPlan& plan) {
  std::uint64_t low = plan.hash;
  std::uint64_t high = plan.hash;
  world_.all_reduce(std::span(&low, 1), comm::Reduction::min);
  world_.all_reduce(std::span(&high, 1), comm::Reduction::max);
  if (low != high) {
    fail(ExitCode::communication,
         "ranks made different plans for step {} (rank {}: {:016x}, all {:016x} to {:016x}): "
         "do all of them see the same corpus and program?",
         plan.batch.step, world_.rank(), plan.hash, low, high);
  }
}

template <typename Real>
void Executor<Real>::bind(const program::StepPlan& plan) {
  fence();  // growing a buffer frees the old one, which waits for the device without run.timeout
  const int layers = step_shape_.layers_of_rank(world_.rank());
  for (int half = 0; half < step_shape_.halves; ++half) {
    std::vector<const program::TickPlans*> tick_plans;
    for (const program::TickPlans& tick : plan.tick_plans) {
      if (tick.half == half) tick_plans.push_back(&tick);
    }
    exchange_[at(half)]->bind(tick_plans, step_shape_.layout.tensor(),
                              plan.program.buffers * layers, plan.keeps_patterns);
  }
  if (uses_nccl(experiment_)) enter_nccl(plan);
  if (!trainer_) return;
  std::int64_t rows = 0;
  for (std::size_t tick = 0; tick < plan.tick_plans.size() / exchange_.size(); ++tick) {
    rows = std::max(rows, exchange_.front()->binding(static_cast<int>(tick)).home.rows());
  }
  trainer_->begin_step(plan, rows, loss_scale_);
}

template <typename Real>
void Executor<Real>::enter_nccl(const program::StepPlan& plan) {
  const std::int64_t bytes = nccl_bytes(step_shape_, world_.rank(), plan.tick_plans);
  if (bytes <= nccl_bytes_) return;
  ledger_.add(MemoryKind::communication, bytes - nccl_bytes_);
  nccl_bytes_ = bytes;
}

template <typename Real>
StepResult Executor<Real>::run(const program::StepPlan& plan) {
  tracer_.time_collective(world_, OtherEvent::agree_on_plan, {}, [&] { agree_on_plan(plan); });
  loss_scale_ = 1.0 / static_cast<double>(std::max<std::int64_t>(1, plan.batch.targets()));
  tracer_.time_host(OtherEvent::bind_plan, [&] { bind(plan); });
  sampled_layer_ = sampled_layer(experiment_, plan.batch.step);
  for (const Instruction& instruction : plan.program.instructions) run_operation(instruction, plan);
  tracer_.set_context({});
  if (trainer_) trainer_->finish_step();
  for (const auto& exchange : exchange_) exchange->finish();
  if (plan.keeps_patterns) {
    tracer_.time_collective(*groups_->pool, OtherEvent::share_patterns, {}, [&] {
      exchange_.front()->index().share_patterns(step_shape_.layers_of_rank(world_.rank()));
    });
  }
  for (const auto& exchange : exchange_) exchange->require_all_computed();
  StepResult result;
  tracer_.time_collective(world_, OtherEvent::agree_on_loss, {},
                          [&] { result = agree_on_result(plan); });
  tracer_.finish_step();
  return result;
}

template <typename Real>
StepResult Executor<Real>::agree_on_result(const program::StepPlan& plan) {
  StepSums mine;
  if (trainer_) {
    const auto answers = trainer_->losses().answers();
    mine.loss = trainer_->loss_sum();
    mine.answers = static_cast<double>(answers.size());
    mine.right = static_cast<double>(std::ranges::count(answers, 1u, &trace::AnswerLoss::hit));
  }
  if (world_.rank() == 0) {
    mine.gradient_norm = trainer_->gradient_norm();
    mine.learning_rate = trainer_->learning_rate();
  }
  auto numbers = std::bit_cast<std::array<double, sizeof(StepSums) / sizeof(double)>>(mine);
  world_.all_reduce(std::span<double>(numbers), comm::Reduction::sum);
  const auto sums = std::bit_cast<StepSums>(numbers);
  return {sums.loss * loss_scale_,    sums.gradient_norm,       sums.learning_rate,
          std::llround(sums.answers), std::llround(sums.right), agree_on_counts(plan),
          agree_on_recall()};
}

template <typename Real>
std::optional<StepResult::LayerRecall> Executor<Real>::agree_on_recall() {
  if (sampled_layer_ < 0) return {};
  using Distances = decltype(Recall::distances);
  auto numbers = std::bit_cast<std::array<std::int64_t, sizeof(Distances) / sizeof(std::int64_t)>>(
      exchange_.front()->index().recall_of_step().distances);
  world_.all_reduce(std::span<std::int64_t>(numbers), comm::Reduction::sum);
  const Recall recall{std::bit_cast<Distances>(numbers)};
  if (recall.total().attention == 0) return {};
  return StepResult::LayerRecall{sampled_layer_, recall};
}

/// Sums pattern counts over a pool and takes the largest over tensor ranks: these compute the same
/// rows, each for its own heads, so a row takes as long as on the rank that keeps most of it. A
/// pool has the heads of one tensor rank.
template <typename Real>
SparseCounts Executor<Real>::agree_on_counts(const program::StepPlan& plan) {
  SparseCounts counts = planned_counts(plan, static_cast<int>(experiment_.model.layers));
  if (counts.rows.empty()) return counts;
  const SparseCounts& mine = exchange_.front()->index().counts_of_step();
  const int stage = trainer_ ? step_shape_.layout.coordinates(world_.rank()).pipeline : 0;
  for (const auto& [place, rows] : mine.rows) {
    counts.rows.at({step_shape_.model_layer(stage, place.layer), place.digits}) = rows;
  }
  std::vector<std::int64_t> numbers;
  for (const auto& [place, rows] : counts.rows) {
    numbers.insert(numbers.end(), rows.kept.begin(), rows.kept.end());
    numbers.insert(numbers.end(), rows.causal.begin(), rows.causal.end());
  }
  groups_->pool->all_reduce(std::span(numbers), comm::Reduction::sum);
  world_.all_reduce(std::span(numbers), comm::Reduction::max);
  auto number = numbers.begin();
  for (auto& [place, rows] : counts.rows) {
    for (auto* const bins : {&rows.kept, &rows.causal}) {
      std::copy_n(number, bins->size(), bins->begin());
      number += static_cast<std::ptrdiff_t>(bins->size());
    }
  }
  std::array<std::int64_t, 2> all = {mine.kept, mine.causal};
  world_.all_reduce(std::span<std::int64_t>(all), comm::Reduction::sum);
  counts.kept = all[0];
  counts.causal = all[1];
  return counts;
}

template <typename Real>
std::vector<trace::PositionLoss> Executor<Real>::position_losses() const {
  return trainer_ ? trainer_->losses().positions() : std::vector<trace::PositionLoss>{};
}

template <typename Real>
std::vector<trace::AnswerLoss> Executor<Real>::answer_losses() const {
  if (!trainer_) return {};
  const auto answers = trainer_->losses().answers();
  return {answers.begin(), answers.end()};
}

template <typename Real>
std::vector<DocumentLoss> Executor<Real>::document_losses(std::int64_t documents) const {
  std::vector<DocumentLoss> losses(static_cast<std::size_t>(documents));
  if (trainer_) std::ranges::copy(trainer_->losses().documents(), losses.begin());
  constexpr std::size_t kNumbers = sizeof(DocumentLoss) / sizeof(double);
  const std::span numbers(reinterpret_cast<double*>(losses.data()), losses.size() * kNumbers);
  world_.all_reduce(numbers, comm::Reduction::sum);
  return losses;
}

template <typename Real>
void Executor<Real>::run_operation(const Instruction& instruction, const program::StepPlan& plan) {
  tracer_.set_context(program::context_of(instruction, step_shape_.halves));
  const Tracer::Doing doing(tracer_, instruction.operation);
  const auto run = [&] {
    if (program::is_attention(instruction.operation)) return run_attention(instruction);
    for (std::size_t half = 0; half < exchange_.size(); ++half) {
      if (program::writes_sent_rows(instruction, static_cast<int>(half))) exchange_[half]->finish();
    }
    const HomeRows& home =
        exchange_.front()->binding(std::max(instruction.plan, 0) / step_shape_.halves).home;
    trainer_->run(instruction, plan, home);
  };
  program::describe(instruction.operation).whole ? run()
                                                 : tracer_.time_if_long(instruction.operation, run);
  if (program::is_attention(instruction.operation)) return;
  if (instruction.operation == program::Operation::attention_outputs &&
      instruction.pass == program::Pass::forward && !instruction.recompute) {
    sample_recall(instruction, plan.batch.step);
  }
  tracer_.time_if_long(OtherEvent::progress, [&] { groups_->pool->progress(); });
}

template <typename Real>
void Executor<Real>::sample_recall(const Instruction& instruction, std::int64_t step) {
  const int stage = step_shape_.layout.coordinates(world_.rank()).pipeline;
  const int layer = step_shape_.model_layer(stage, instruction.layer);
  if (layer != sampled_layer_) return;
  const std::uint64_t seed =
      Hasher().add(static_cast<std::uint64_t>(step)).add(static_cast<std::uint64_t>(layer)).value();
  exchange_.front()->index().sample(context_of(instruction), *groups_->context, seed);
}

template <typename Real>
AttentionContext<Real> Executor<Real>::context_of(const Instruction& instruction) {
  AttentionContext<Real> context;
  context.plan = instruction.plan / step_shape_.halves;
  context.layer = instruction.layer;
  context.pass = instruction.pass;
  context.recompute = instruction.recompute;
  const int layers = step_shape_.layers_of_rank(world_.rank());
  context.copy = std::max(instruction.buffer, 0) * layers + instruction.layer;
  if (!rules_.empty()) context.rules = rules_[at(instruction.layer)];
  if (instruction.buffer >= 0) context.home = trainer_->attention_buffers(instruction);
  return context;
}

template <typename Real>
void Executor<Real>::run_attention(const Instruction& instruction) {
  AttentionExchange<Real>& exchange = *exchange_[at(instruction.half)];
  exchange.set_context(context_of(instruction));
  exchange.run(instruction.operation, instruction.stage);
}

template <typename Real>
void Executor<Real>::write_checkpoint(const std::string& path, std::int64_t step,
                                      const SparseEstimates& estimates,
                                      const config::FileContents& contents) {
  if (trainer_) trainer_->write_checkpoint(path, step, estimates, contents);
}

template <typename Real>
void Executor<Real>::read_checkpoint(const model::CheckpointReader& checkpoint) {
  if (trainer_) trainer_->read_checkpoint(checkpoint);
}

template <typename Real>
void Executor<Real>::read_parameters(const model::HuggingFaceFolder& folder) {
  if (trainer_) trainer_->read_parameters(folder);
}

template class Executor<bfloat16>;
template class Executor<float>;
template class Executor<double>;

}  // namespace cadenza::exec
