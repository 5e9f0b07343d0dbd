// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/executor.hpp"

#include <algorithm>
#include <cmath>

#include "cadenza/attention/core_attention.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/exec/memory.hpp"
#include "cadenza/model/rotary.hpp"
#include "exec/collectives/groups.hpp"
#include "trainer.hpp"

namespace cadenza::exec {
namespace {

using program::OtherEvent;
using program::Step;

template <typename Sum>
kernels::RotaryTable<Sum> rotary_table(const config::Experiment& experiment, MemoryLedger& ledger) {
  const auto head_dim = static_cast<int>(experiment.model.head_dim());
  return attention::make_rotary_table<Sum>(
      ledger, table_positions(experiment),
      model::rotary_frequencies(experiment.model.rope, head_dim));
}

}  // namespace

model::ModelPart model_part(const config::Experiment& experiment, const program::Layout& layout,
                            Rank trainer) {
  const program::Coordinates at = layout.coordinates(trainer);
  const std::int64_t stages = layout.pipeline();
  const std::int64_t chunks = experiment.parallel.chunks;
  const std::int64_t layers = experiment.model.layers / (stages * chunks);
  model::ModelPart part;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const std::int64_t first = (chunk * stages + at.pipeline) * layers;
    part.chunks.push_back({first, first + layers});
  }
  part.embedding = at.pipeline == 0;
  part.head = at.pipeline + 1 == stages;
  part.tensor_rank = at.tensor;
  part.tensor_size = layout.tensor();
  return part;
}

template <typename Real>
Executor<Real>::Executor(const config::Experiment& experiment, comm::Communicator& world,
                         const data::Corpus& corpus, Tracer& tracer, MemoryLedger& ledger)
    : experiment_(experiment),
      outline_(experiment),
      world_(world),
      groups_(std::make_unique<Groups>(world, outline_.layout)),
      tracer_(tracer),
      activity_(
          world, [&tracer] { return tracer.activity(); },
          [&tracer](std::int64_t now) { tracer.looked(now); }),
      rotary_(rotary_table<Sum>(experiment, ledger)) {
  for (int part = 0; part < outline_.parts; ++part) {
    exchange_.push_back(std::make_unique<AttentionExchange<Real>>(
        *groups_->pool, outline_.layout.members(outline_.layout.pool_of(world.rank())),
        model::attention_shape(experiment.model, outline_.layout.tensor(),
                               experiment.attention.kernel),
        rotary_, part, tracer, ledger));
  }
  if (!outline_.layout.trains(world.rank())) return;
  trainer_ = std::make_unique<Trainer<Real>>(experiment_, outline_, world, *groups_, rotary_,
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
         "ranks made different plans for step {} (rank {}: {:016x}, others {:016x} to {:016x}): "
         "do all of them see the same corpus and program?",
         plan.batch.step, world_.rank(), plan.hash, low, high);
  }
}

template <typename Real>
void Executor<Real>::bind(const program::StepPlan& plan) {
  const int layers = outline_.layers * outline_.pipeline.chunks;
  for (int part = 0; part < outline_.parts; ++part) {
    std::vector<const program::TickPlans*> ticks;
    for (const program::TickPlans& tick : plan.ticks) {
      if (tick.part == part) ticks.push_back(&tick);
    }
    exchange_[static_cast<std::size_t>(part)]->bind(ticks, outline_.layout.tensor(),
                                                    plan.program.buffers * layers);
  }
  if (!trainer_) return;
  std::int64_t rows = 0;
  for (std::size_t tick = 0; tick < plan.ticks.size() / exchange_.size(); ++tick) {
    rows = std::max(rows, exchange_.front()->binding(static_cast<int>(tick)).home.rows());
  }
  trainer_->begin_step(plan, rows, loss_scale_);
}

template <typename Real>
StepResult Executor<Real>::run(const program::StepPlan& plan) {
  tracer_.time_collective(world_, OtherEvent::agree_on_plan, {}, [&] { agree_on_plan(plan); });
  loss_scale_ = 1.0 / static_cast<double>(std::max<std::int64_t>(1, plan.batch.targets()));
  tracer_.time_host(OtherEvent::bind_plan, [&] { bind(plan); });
  for (const Step& step : plan.program.steps) run_operation(step, plan);
  tracer_.set_context({});
  for (const auto& exchange : exchange_) exchange->finish();
  for (const auto& exchange : exchange_) exchange->require_all_computed();
  StepResult result;
  tracer_.time_collective(world_, OtherEvent::agree_on_loss, {},
                          [&] { result = agree_on_result(); });
  tracer_.finish_step();
  return result;
}

template <typename Real>
StepResult Executor<Real>::agree_on_result() {
  std::array<double, 7> sums{};
  if (trainer_) {
    const auto answers = trainer_->losses().answers();
    sums[0] = trainer_->loss_sum();
    sums[3] = static_cast<double>(answers.size());
    sums[4] = static_cast<double>(std::ranges::count(answers, 1u, &trace::AnswerLoss::hit));
  }
  if (world_.rank() == 0) {
    sums[1] = trainer_->gradient_norm();
    sums[2] = trainer_->learning_rate();
  }
  if (!outline_.sparse.empty()) {
    sums[5] = exchange_.front()->index().recall_of_step().kept;
    sums[6] = exchange_.front()->index().recall_of_step().all;
  }
  world_.all_reduce(std::span<double>(sums), comm::Reduction::sum);
  const std::optional<double> recall =
      sums[6] > 0 ? std::optional(sums[5] / sums[6]) : std::nullopt;
  return {sums[0] * loss_scale_, sums[1],           sums[2], std::llround(sums[3]),
          std::llround(sums[4]), agree_on_counts(), recall};
}

template <typename Real>
SparseCounts Executor<Real>::agree_on_counts() {
  SparseCounts counts;
  if (outline_.sparse.empty()) return counts;
  std::vector<std::int64_t> numbers;
  for (const auto& bins : exchange_.front()->index().counts_of_step().bins) {
    for (const SparseCounts::Bin& bin : bins) {
      numbers.push_back(bin.kept);
      numbers.push_back(bin.causal);
    }
  }
  world_.all_reduce(std::span(numbers), comm::Reduction::sum);
  auto number = numbers.begin();
  for (auto& bins : counts.bins) {
    for (SparseCounts::Bin& bin : bins) {
      bin.kept = *number++;
      bin.causal = *number++;
    }
  }
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
void Executor<Real>::run_operation(const Step& step, const program::StepPlan& plan) {
  tracer_.set_context(program::context_of(step, outline_.parts));
  const Tracer::Doing doing(tracer_, step.operation);
  const auto run = [&] {
    if (program::is_attention(step.operation)) return run_attention(step);
    const HomeRows& home = exchange_.front()->binding(std::max(step.tick, 0) / outline_.parts).home;
    trainer_->run(step, plan, home);
    if (step.operation == program::Operation::attention_outputs &&
        step.pass == program::Pass::forward && !step.recompute && !outline_.sparse.empty()) {
      exchange_.front()->index().sample(context_of(step));
    }
  };
  program::describe(step.operation).whole ? run() : tracer_.time_if_long(step.operation, run);
  if (program::is_attention(step.operation)) return;
  tracer_.time_if_long(OtherEvent::progress, [&] { groups_->pool->progress(); });
}

template <typename Real>
AttentionContext<Real> Executor<Real>::context_of(const Step& step) {
  AttentionContext<Real> context;
  context.tick = step.tick / outline_.parts;
  context.layer = step.layer;
  context.pass = step.pass;
  context.recompute = step.recompute;
  const int layers = outline_.layers * outline_.pipeline.chunks;
  context.copy = std::max(step.buffer, 0) * layers + step.layer;
  const int stage = trainer_ ? outline_.layout.coordinates(world_.rank()).pipeline : 0;
  context.sparse = outline_.is_sparse(stage, std::max(step.chunk, 0),
                                      step.layer - std::max(step.chunk, 0) * outline_.layers);
  if (step.buffer >= 0) context.home = trainer_->attention_buffers(step);
  return context;
}

template <typename Real>
void Executor<Real>::run_attention(const Step& step) {
  AttentionExchange<Real>& exchange = *exchange_[static_cast<std::size_t>(step.part)];
  exchange.set_context(context_of(step));
  exchange.run(step.operation, step.stage);
}

template <typename Real>
void Executor<Real>::write_checkpoint(const std::string& path, std::int64_t step) {
  if (trainer_) trainer_->write_checkpoint(path, step);
}

template <typename Real>
void Executor<Real>::read_checkpoint(const std::string& path) {
  if (trainer_) trainer_->read_checkpoint(model::CheckpointReader(path));
}

template class Executor<bfloat16>;
template class Executor<float>;
template class Executor<double>;

}  // namespace cadenza::exec
