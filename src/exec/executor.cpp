// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/executor.hpp"

#include <algorithm>

#include "cadenza/attention/core_attention.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/model/estimate.hpp"
#include "cadenza/model/optimizer.hpp"
#include "elements.hpp"

namespace cadenza::exec {
namespace {

using program::Operation;
using program::Pass;
using trace::Category;

template <typename Sum>
kernels::RotaryTable<Sum> rotary_table(const config::Experiment& experiment, MemoryLedger& ledger) {
  // No document is longer than its microbatch.
  return attention::make_rotary_table<Sum>(ledger, experiment.batch.microbatch,
                                           static_cast<int>(experiment.model.head_dim()),
                                           experiment.model.rope.theta);
}

void read_batch(const data::Corpus& corpus, const data::Microbatch& microbatch,
                model::TokenBatch& batch) {
  batch.tokens = data::read_tokens(corpus, microbatch);
  batch.positions.clear();
  batch.targets.clear();
  std::size_t row = 0;
  for (const data::BatchDocument& document : microbatch.documents) {
    for (std::int64_t position = 0; position < document.length(); ++position, ++row) {
      batch.positions.push_back(static_cast<std::int32_t>(position));
      const bool last = position + 1 == document.length();
      batch.targets.push_back(last ? -1 : batch.tokens[row + 1]);
    }
  }
}

}  // namespace

template <typename Real>
Executor<Real>::Executor(const config::Experiment& experiment, comm::Communicator& world,
                         const data::Corpus& corpus, Tracer& tracer, MemoryLedger& ledger)
    : experiment_(experiment),
      world_(world),
      trainers_(world.split(world.rank() < experiment.parallel.trainers() ? 0 : 1)),
      corpus_(corpus),
      tracer_(tracer),
      rotary_(rotary_table<Sum>(experiment, ledger)),
      exchange_(world, model::attention_shape(experiment.model), rotary_, tracer, ledger) {
  for (int operation = 0; operation <= static_cast<int>(Operation::optimize); ++operation) {
    names_[static_cast<std::size_t>(operation)] =
        tracer.intern(program::name(static_cast<Operation>(operation)));
  }
  if (world.rank() >= experiment.parallel.trainers()) return;
  parameters_ = model::make_parameters<Real>(experiment.model, experiment.seed, ledger);
  gradients_ = Kokkos::create_mirror_view(parameters_->gradients);
  llama_.emplace(experiment.model, experiment.batch.microbatch, rotary_, *parameters_, ledger);
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
StepResult Executor<Real>::run(const program::StepPlan& plan) {
  tracer_.time_collective(world_, "agree_on_plan", {}, [&] { agree_on_plan(plan); });
  result_ = {};
  loss_sum_ = 0;
  loss_scale_ = 1.0 / static_cast<double>(std::max<std::int64_t>(1, plan.batch.targets()));
  bound_tick_ = -1;
  if (parameters_) zero_elements(parameters_->gradients.data(), parameters_->table.elements);
  for (const program::Step& step : plan.program.steps) run_operation(step, plan);

  tracer_.set_place(-1, -1, trace::Phase::other);
  tracer_.time_collective(world_, "agree_on_loss", {}, [&] {
    std::array<double, 3> sums = {loss_sum_, 0, 0};
    if (world_.rank() == 0) sums = {loss_sum_, result_.gradient_norm, result_.learning_rate};
    world_.all_reduce(std::span<double>(sums), comm::Reduction::sum);
    result_ = {sums[0] * loss_scale_, sums[1], sums[2]};
  });
  return result_;
}

template <typename Real>
void Executor<Real>::run_operation(const program::Step& step, const program::StepPlan& plan) {
  const bool updates =
      step.operation == Operation::reduce_gradients || step.operation == Operation::optimize;
  tracer_.set_place(step.tick, step.layer,
                    updates                      ? trace::Phase::optimizer
                    : step.pass == Pass::forward ? trace::Phase::forward
                                                 : trace::Phase::backward);
  if (step.tick >= 0 && step.tick != bound_tick_) {
    exchange_.bind(plan.ticks[static_cast<std::size_t>(step.tick)], step.tick);
    bound_tick_ = step.tick;
  }
  switch (step.operation) {
    case Operation::embed:
      load_microbatch(plan, step.tick);
      run_dense(step);
      break;
    case Operation::begin_attention:
    case Operation::post:
    case Operation::wait:
    case Operation::attend:
      run_attention(step);
      break;
    case Operation::reduce_gradients:
      reduce_gradients();
      break;
    case Operation::optimize:
      optimize(plan.batch.step);
      break;
    default:
      run_dense(step);
      break;
  }
}

template <typename Real>
void Executor<Real>::load_microbatch(const program::StepPlan& plan, int tick) {
  tracer_.time(Category::data, tracer_.intern("read_tokens"), {}, [&] {
    const auto index = static_cast<std::size_t>(tick * experiment_.parallel.data + world_.rank());
    read_batch(corpus_, plan.batch.microbatches[index], batch_);
    llama_->set_batch(batch_);
  });
}

template <typename Real>
void Executor<Real>::run_dense(const program::Step& step) {
  const auto name = names_[static_cast<std::size_t>(step.operation)];
  const std::int64_t rows = llama_->rows();
  const bool forward = step.pass == Pass::forward;
  const double factor = forward ? 1.0 : 2.0;
  const auto dense = [&](double flops, auto operation) {
    tracer_.time(Category::compute_dense, name, {0, flops}, operation);
  };
  switch (step.operation) {
    case Operation::attention_inputs:
      dense(factor * model::attention_inputs_flops(experiment_.model, rows), [&] {
        forward ? llama_->attention_inputs(step.layer)
                : llama_->attention_inputs_gradient(step.layer);
      });
      break;
    case Operation::attention_outputs:
      dense(factor * model::attention_outputs_flops(experiment_.model, rows), [&] {
        forward ? llama_->attention_outputs(step.layer)
                : llama_->attention_outputs_gradient(step.layer);
      });
      break;
    case Operation::loss:
      dense(3.0 * model::head_flops(experiment_.model, rows),
            [&] { loss_sum_ += llama_->loss(loss_scale_); });
      tracer_.sample_memory();
      break;
    case Operation::embed:
      tracer_.time(Category::compute_other, name, {}, [&] { llama_->embed(); });
      break;
    default:
      tracer_.time(Category::compute_other, name, {}, [&] { llama_->embed_gradient(); });
      break;
  }
}

template <typename Real>
void Executor<Real>::run_attention(const program::Step& step) {
  exchange_.set_layer(step.layer, llama_ ? llama_->slot(step.layer) : model::AttentionSlot<Real>{});
  switch (step.operation) {
    case Operation::begin_attention:
      exchange_.begin(step.pass);
      break;
    case Operation::post:
      exchange_.post(step.pass, step.stage);
      break;
    case Operation::wait:
      exchange_.wait(step.pass, step.stage);
      break;
    default:
      exchange_.attend(step.pass, step.stage);
      break;
  }
}

template <typename Real>
void Executor<Real>::reduce_gradients() {
  const std::int64_t bytes = parameters_->table.elements * static_cast<std::int64_t>(sizeof(Sum));
  const auto name = program::name(Operation::reduce_gradients);
  tracer_.time_collective(*trainers_, name, {bytes}, [&] {
    Kokkos::deep_copy(gradients_, parameters_->gradients);
    trainers_->all_reduce(std::span<Sum>(gradients_.data(), gradients_.extent(0)),
                          comm::Reduction::sum);
    Kokkos::deep_copy(parameters_->gradients, gradients_);
  });
}

template <typename Real>
void Executor<Real>::optimize(std::int64_t step) {
  const auto name = names_[static_cast<std::size_t>(Operation::optimize)];
  tracer_.time(Category::optimizer, name, {}, [&] {
    result_.learning_rate =
        model::learning_rate(experiment_.optimizer, step, experiment_.run.steps);
    result_.gradient_norm = model::gradient_norm(*parameters_);
    model::adamw(*parameters_, experiment_.optimizer, result_.learning_rate, result_.gradient_norm,
                 step);
  });
  tracer_.sample_memory();
}

template class Executor<bfloat16>;
template class Executor<float>;
template class Executor<double>;

}  // namespace cadenza::exec
