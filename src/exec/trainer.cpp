// SPDX-License-Identifier: Apache-2.0
#include "trainer.hpp"

#include <cmath>

#include "cadenza/exec/memory.hpp"
#include "cadenza/model/optimizer.hpp"
#include "cadenza/program/flops.hpp"
#include "checkpoint.hpp"
#include "exec/attention/elements.hpp"
#include "microbatch.hpp"

namespace cadenza::exec {
namespace {

using program::Operation;
using program::Pass;
using program::Step;
using trace::Category;

/// What of the optimizer's state this rank keeps.
std::vector<Range> owned_elements(const model::ParameterTable& table, bool shards,
                                  const comm::Communicator& replicas) {
  if (!shards) return model::all_elements(table);
  return GradientShards(table, replicas.size()).owned(replicas.rank());
}

}  // namespace

template <typename Real>
Trainer<Real>::Trainer(const config::Experiment& experiment, const program::StepShape& step_shape,
                       comm::Communicator& world, Groups& groups,
                       const kernels::RotaryTable<Sum>& rotary, const data::Corpus& corpus,
                       Tracer& tracer, MemoryLedger& ledger)
    : experiment_(experiment),
      layout_(step_shape.layout),
      groups_(groups),
      world_(world),
      corpus_(corpus),
      tracer_(tracer),
      at_(step_shape.layout.coordinates(world.rank())),
      part_(model_part(experiment, step_shape.layout, world.rank())),
      shards_(step_shape.shards_optimizer),
      parameters_(model::make_parameters<Real>(
          experiment.model, part_, experiment.seed, ledger,
          owned_elements(model::make_parameter_table(experiment.model, part_), shards_,
                         *groups.replicas))),
      tensor_(*groups.tensor, tracer),
      gradients_(parameters_, *groups.replicas, shards_, tracer, ledger),
      streams_(world, tracer, ledger),
      ledger_(ledger),
      rotary_(rotary) {
  for (int operation = 0; operation < program::kOperations; ++operation) {
    names_[static_cast<std::size_t>(operation)] =
        tracer.intern(program::name(static_cast<Operation>(operation)));
  }
}

template <typename Real>
void Trainer<Real>::begin_step(const program::StepPlan& plan, std::int64_t rows,
                               double loss_scale) {
  if (!llama_ || plan.program.slots > buffers_) {
    buffers_ = plan.program.slots;
    llama_.reset();
    const std::int64_t room = std::max(rows, usual_rows(experiment_));
    llama_.emplace(experiment_.model, part_, model::Capacity{room, buffers_},
                   experiment_.run.recompute, rotary_, parameters_,
                   layout_.tensor() > 1 ? &tensor_ : nullptr, ledger_);
  }
  llama_->reserve(rows);
  tracer_.time(Category::compute_other, tracer_.intern("zero_gradients"), {},
               [&] { zero_elements(parameters_.gradients.data(), parameters_.table.elements); });
  loss_scale_ = loss_scale;
  loss_sum_ = 0;
}

template <typename Real>
void Trainer<Real>::run(const Step& step, const program::StepPlan& plan, const HomeRows& home) {
  const Range all{0, home.rows()};
  switch (step.operation) {
    case Operation::load:
      load(step, plan, home);
      break;
    case Operation::send:
      send(step, all);
      break;
    case Operation::receive:
      receive(step, all);
      break;
    case Operation::reduce_layer:
      gradients_.post_layer(step.layer);
      break;
    case Operation::reduce_gradients:
      reduce();
      break;
    case Operation::gradient_norm:
      measure_gradient();
      break;
    case Operation::optimize:
      optimize(plan.batch.step);
      break;
    case Operation::gather_parameters:
      tracer_.time_collective(*groups_.replicas, program::name(step.operation), {},
                              [&] { gradients_.gather_parameters(); });
      break;
    default: {
      const Range rows = home.halves[static_cast<std::size_t>(step.part)];
      if (!rows.empty()) run_dense(step, rows);
    }
  }
}

template <typename Real>
void Trainer<Real>::load(const Step& step, const program::StepPlan& plan, const HomeRows& home) {
  tracer_.time(Category::data, names_[static_cast<std::size_t>(step.operation)], {}, [&] {
    const program::TickPlans& tick = plan.ticks[static_cast<std::size_t>(step.tick)];
    const int group = layout_.in_pool(world_.rank()) / layout_.context();
    const data::Microbatch& microbatch =
        program::microbatch_of(layout_, plan.batch, at_.data, step.microbatch);
    read_rows(corpus_, microbatch, tick.forward.workload,
              tick.first_document[static_cast<std::size_t>(group)], home, batch_);
    llama_->set_batch(step.slot, batch_);
  });
}

template <typename Real>
void Trainer<Real>::run_dense(const Step& step, Range rows) {
  const auto name = names_[static_cast<std::size_t>(step.operation)];
  const double flops = program::matrix_flops(step, experiment_, rows.size());
  switch (step.operation) {
    case Operation::embed:
      tracer_.time(Category::compute_other, name, {}, [&] { llama_->embed(step.slot, rows); });
      break;
    case Operation::embed_gradient:
      tracer_.time(Category::compute_other, name, {},
                   [&] { llama_->embed_gradient(step.slot, rows); });
      break;
    case Operation::loss:
      tracer_.time(Category::compute_dense, name, {0, flops}, [&] {
        const double sum = llama_->loss(step.slot, rows, loss_scale_);
        if (at_.tensor == 0) loss_sum_ += sum;
      });
      tracer_.sample_memory();
      break;
    default:
      tracer_.time(Category::compute_dense, name, {0, flops}, [&] { run_layer(step, rows); });
      break;
  }
}

template <typename Real>
void Trainer<Real>::run_layer(const Step& step, Range rows) {
  const bool inputs = step.operation == Operation::attention_inputs;
  if (step.again) {
    inputs ? llama_->recompute_inputs(step.slot, step.layer, rows)
           : llama_->recompute_outputs(step.slot, step.layer, rows);
  } else if (step.pass == Pass::forward) {
    inputs ? llama_->attention_inputs(step.slot, step.layer, rows)
           : llama_->attention_outputs(step.slot, step.layer, rows);
  } else {
    inputs ? llama_->attention_inputs_gradient(step.slot, step.layer, rows)
           : llama_->attention_outputs_gradient(step.slot, step.layer, rows);
  }
}

template <typename Real>
void Trainer<Real>::send(const Step& step, Range rows) {
  streams_.send(step, llama_->boundary_elements(rows), [&](Sum* to) {
    if (rows.empty()) return;
    step.pass == Pass::forward ? llama_->output(step.slot, rows, to) : llama_->gradient(rows, to);
  });
}

template <typename Real>
void Trainer<Real>::receive(const Step& step, Range rows) {
  streams_.receive(step, llama_->boundary_elements(rows), [&](const Sum* from) {
    if (rows.empty()) return;
    step.pass == Pass::forward ? llama_->set_input(step.slot, rows, from)
                               : llama_->set_gradient(rows, from);
  });
}

template <typename Real>
void Trainer<Real>::reduce() {
  const std::int64_t bytes = parameters_.table.elements * static_cast<std::int64_t>(sizeof(Sum));
  if (layout_.tensor() > 1) llama_->reduce_norm_gradients();
  tracer_.time_collective(*groups_.replicas, program::name(Operation::reduce_gradients), {bytes},
                          [&] { gradients_.finish(); });
}

template <typename Real>
void Trainer<Real>::measure_gradient() {
  double squares = 0;
  tracer_.time(Category::optimizer, names_[static_cast<std::size_t>(Operation::gradient_norm)], {},
               [&] { squares = model::squared_gradient_norm(parameters_); });
  comm::Communicator& owners = shards_ ? *groups_.trainers : *groups_.model;
  tracer_.time_collective(owners, "agree_on_norm", {},
                          [&] { owners.all_reduce(std::span(&squares, 1), comm::Reduction::sum); });
  gradient_norm_ = std::sqrt(squares);
  streams_.finish();  // who has the sum has received its last message: nobody waits here
}

template <typename Real>
void Trainer<Real>::optimize(std::int64_t step) {
  const auto name = names_[static_cast<std::size_t>(Operation::optimize)];
  tracer_.time(Category::optimizer, name, {}, [&] {
    learning_rate_ = model::learning_rate(experiment_.optimizer, step, experiment_.run.steps);
    model::adamw(parameters_, experiment_.optimizer, learning_rate_, gradient_norm_, step);
  });
  tracer_.sample_memory();
}

template <typename Real>
void Trainer<Real>::write_checkpoint(const std::string& path, std::int64_t step) {
  exec::write_checkpoint(experiment_, layout_, *groups_.trainers, parameters_, gradients_, path,
                         step);
}

template class Trainer<bfloat16>;
template class Trainer<float>;
template class Trainer<double>;

}  // namespace cadenza::exec
