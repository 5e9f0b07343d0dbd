// SPDX-License-Identifier: Apache-2.0
#include "exec/trainer.hpp"

#include <cmath>

#include "cadenza/base/at.hpp"
#include "cadenza/exec/memory/estimate.hpp"
#include "cadenza/model/parameters.hpp"
#include "exec/attention/elements.hpp"
#include "exec/losses.hpp"

namespace cadenza::exec {
namespace {

using program::Instruction;
using program::Operation;
using program::OtherEvent;
using program::Pass;

/// Returns the elements whose optimizer state this rank keeps; none where nothing is updated.
std::vector<Range> owned_elements(const model::ParameterTable& table,
                                  const program::StepShape& step_shape,
                                  const comm::Communicator& replicas) {
  if (step_shape.evaluates) return {};
  if (!step_shape.shards_optimizer) return model::all_elements(table);
  return GradientShards(table, replicas.size()).owned(replicas.rank());
}

std::int64_t bytes_of(const HostStore::Arrays& arrays) {
  std::int64_t bytes = 0;
  for (const std::span<std::byte> array : arrays) bytes += std::ssize(array);
  return bytes;
}

}  // namespace

template <typename Real>
Trainer<Real>::Trainer(const config::Experiment& experiment, const program::StepShape& step_shape,
                       comm::Communicator& world, Groups& groups,
                       const kernels::RotaryTable<Sum>& rotary, const data::Corpus& corpus,
                       Tracer& tracer, MemoryLedger& ledger)
    : experiment_(experiment),
      step_shape_(step_shape),
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
          owned_elements(model::make_parameter_table(experiment.model, part_), step_shape,
                         *groups.replicas),
          !step_shape.evaluates)),
      tensor_(*groups.slices, tracer),
      gradients_(parameters_, *groups.gradients, shards_, tracer, ledger),
      streams_(*groups.streams, program::stream_buffers_of_stage(step_shape, at_.pipeline),
               world.rank(), tracer, ledger),
      ledger_(ledger),
      rotary_(rotary),
      shapes_(experiment, step_shape.layout) {}

template <typename Real>
void Trainer<Real>::begin_step(const program::StepPlan& plan, std::int64_t rows,
                               double loss_scale) {
  if (!llama_ || plan.program.buffers > buffers_) {
    buffers_ = plan.program.buffers;
    places_.resize(static_cast<std::size_t>(buffers_));
    llama_.reset();
    const std::int64_t room = std::max(rows, usual_rows(experiment_));
    llama_.emplace(experiment_.model, part_,
                   capacity_of(experiment_, step_shape_, world_.rank(), room, buffers_),
                   experiment_.run.recompute, rotary_, parameters_,
                   layout_.tensor() > 1 ? &tensor_ : nullptr, ledger_);
  }
  llama_->reserve(rows);
  if (step_shape_.offloads) {
    if (!store_) store_.emplace();
    store_->reserve(bytes_of(llama_->kept(0)));
  }
  streams_.reserve(llama_->boundary_bytes({0, std::max(rows, usual_rows(experiment_))}));
  if (!experiment_.run.evaluates) {
    tracer_.time(OtherEvent::zero_gradients, {},
                 [&] { zero_elements(parameters_.gradients.data(), parameters_.table.elements); });
  }
  loss_scale_ = loss_scale;
  loss_sum_ = 0;
  losses_.begin_step(plan.batch.step);
}

template <typename Real>
void Trainer<Real>::run(const Instruction& instruction, const program::StepPlan& plan,
                        const HomeRows& home) {
  struct Call {
    const Instruction& instruction;
    const program::StepPlan& plan;
    const HomeRows& home;
    Range all() const { return {0, home.rows()}; }
    Range half() const { return home.halves[at(instruction.half)]; }
  };
  using Handler = void (*)(Trainer&, const Call&);
  constexpr Handler run_layer = [](Trainer& t, const Call& c) {
    t.run_rows(c.instruction, c.half(), [&](Range rows) { t.run_layer(c.instruction, rows); });
  };
  constexpr Handler run_copy = [](Trainer& t, const Call& c) { t.copy(c.instruction); };
  static constexpr auto kHandlers = program::handlers_of<Handler>(
      program::Actor::trainer,
      {{Operation::load, [](Trainer& t, const Call& c) { t.load(c.instruction, c.plan, c.home); }},
       {Operation::embed,
        [](Trainer& t, const Call& c) {
          t.run_rows(c.instruction, c.half(),
                     [&](Range rows) { t.llama_->embed(c.instruction.buffer, rows); });
        }},
       {Operation::post_receive,
        [](Trainer& t, const Call& c) {
          t.streams_.post_receive(c.instruction, t.llama_->boundary_bytes(c.all()));
        }},
       {Operation::receive, [](Trainer& t, const Call& c) { t.receive(c.instruction, c.all()); }},
       {Operation::send, [](Trainer& t, const Call& c) { t.send(c.instruction, c.all()); }},
       {Operation::offload, run_copy},
       {Operation::fetch, run_copy},
       {Operation::wait_for_copy, run_copy},
       {Operation::attention_inputs, run_layer},
       {Operation::attention_outputs, run_layer},
       {Operation::loss,
        [](Trainer& t, const Call& c) {
          t.run_rows(c.instruction, c.half(), [&](Range rows) { t.add_loss(c.instruction, rows); });
        }},
       {Operation::embed_gradient,
        [](Trainer& t, const Call& c) {
          t.run_rows(c.instruction, c.half(),
                     [&](Range rows) { t.llama_->embed_gradient(c.instruction.buffer, rows); });
        }},
       {Operation::reduce_layer,
        [](Trainer& t, const Call& c) { t.gradients_.post_layer(c.instruction.layer); }},
       {Operation::reduce_gradients, [](Trainer& t, const Call& c) { t.reduce(c.instruction); }},
       {Operation::gradient_norm, [](Trainer& t, const Call&) { t.measure_gradient(); }},
       {Operation::optimize, [](Trainer& t, const Call& c) { t.optimize(c.plan.batch.step); }},
       {Operation::gather_parameters, [](Trainer& t, const Call&) { t.gather_parameters(); }}});
  kHandlers[at(instruction.operation)](*this, {instruction, plan, home});
}

template <typename Real>
void Trainer<Real>::load(const Instruction& instruction, const program::StepPlan& plan,
                         const HomeRows& home) {
  tracer_.time(instruction.operation, {}, [&] {
    const program::TickPlans& tick = plan.tick_plans[at(instruction.plan)];
    const int group = layout_.in_pool(world_.rank()) / layout_.context();
    const data::Microbatch& microbatch =
        program::microbatch_of(layout_, plan.batch, at_.data, instruction.microbatch);
    RowPlaces& places = places_[at(instruction.buffer)];
    places.first_document = plan.batch.first_document(microbatch);
    read_rows(plan.corpus != nullptr ? *plan.corpus : corpus_, microbatch, tick.forward.workload,
              tick.first_document[at(group)], home, batch_, places);
    llama_->set_batch(instruction.buffer, instruction.chunk, batch_);
  });
}

template <typename Real>
template <typename Compute>
void Trainer<Real>::run_rows(const Instruction& instruction, Range rows, Compute compute) {
  if (rows.empty()) return;
  const double flops = shapes_.work(instruction, world_.rank(), rows.size()).flops();
  tensor_.begin(shapes_.collectives(instruction, world_.rank(), rows.size()));
  tracer_.time(instruction.operation, {0, flops}, [&] { compute(rows); });
  tensor_.end(instruction.operation);
  if (instruction.operation == Operation::loss) tracer_.sample_memory();
}

template <typename Real>
void Trainer<Real>::add_loss(const Instruction& instruction, Range rows) {
  const bool gradient = program::is_gradient(instruction);
  const double sum = llama_->loss(instruction.buffer, rows, loss_scale_, gradient);
  if (at_.tensor > 0) return;  // tensor rank 0 counts the same sum
  loss_sum_ += sum;
  losses_.add(places_[at(instruction.buffer)], rows, llama_->token_losses(rows));
}

template <typename Real>
void Trainer<Real>::run_layer(const Instruction& instruction, Range rows) {
  const bool inputs = instruction.operation == Operation::attention_inputs;
  if (instruction.recompute) {
    inputs ? llama_->recompute_inputs(instruction.buffer, instruction.layer, rows)
           : llama_->recompute_outputs(instruction.buffer, instruction.layer, rows);
  } else if (instruction.pass == Pass::forward) {
    inputs ? llama_->attention_inputs(instruction.buffer, instruction.layer, rows)
           : llama_->attention_outputs(instruction.buffer, instruction.layer, rows);
  } else {
    inputs ? llama_->attention_inputs_gradient(instruction.buffer, instruction.layer, rows)
           : llama_->attention_outputs_gradient(instruction.buffer, instruction.layer, rows);
  }
}

template <typename Real>
void Trainer<Real>::send(const Instruction& instruction, Range rows) {
  streams_.send(instruction, llama_->boundary_bytes(rows), [&](std::byte* to) {
    if (rows.empty()) return;
    instruction.pass == Pass::forward ? llama_->output(instruction.buffer, rows, to)
                                      : llama_->gradient(rows, to);
  });
}

template <typename Real>
void Trainer<Real>::receive(const Instruction& instruction, Range rows) {
  streams_.receive(instruction, llama_->boundary_bytes(rows), [&](const std::byte* from) {
    if (rows.empty()) return;
    instruction.pass == Pass::forward ? llama_->set_input(instruction.buffer, rows, from)
                                      : llama_->set_gradient(rows, from);
  });
}

/// Starts a copy of what a layer keeps to or from host memory, or waits for it.
template <typename Real>
void Trainer<Real>::copy(const Instruction& instruction) {
  const auto layers = std::ssize(parameters_.table.layers);
  const std::int64_t place = instruction.buffer * layers + instruction.layer;
  const int slot = instruction.slot;
  if (instruction.operation == Operation::wait_for_copy) {
    return tracer_.time(instruction.operation, {}, [&] { store_->wait(slot); });
  }
  const HostStore::Arrays arrays = llama_->kept(slot);
  tracer_.time(instruction.operation, {bytes_of(arrays)}, [&] {
    const bool out = instruction.operation == Operation::offload;
    out ? store_->put(place, slot, arrays) : store_->get(place, slot, arrays);
  });
}

template <typename Real>
void Trainer<Real>::reduce(const Instruction& instruction) {
  const std::int64_t bytes = parameters_.table.elements * static_cast<std::int64_t>(sizeof(Sum));
  tensor_.begin(shapes_.collectives(instruction, world_.rank(), 0));
  if (layout_.tensor() > 1) llama_->reduce_norm_gradients();
  tensor_.end(instruction.operation);
  tracer_.time_collective(*groups_.replicas, instruction.operation, {bytes},
                          [&] { gradients_.finish(); });
}

template <typename Real>
void Trainer<Real>::gather_parameters() {
  tracer_.time_collective(*groups_.replicas, Operation::gather_parameters, {},
                          [&] { gradients_.gather_parameters(); });
}

template <typename Real>
void Trainer<Real>::measure_gradient() {
  double squares = 0;
  tracer_.time(Operation::gradient_norm, {},
               [&] { squares = model::squared_gradient_norm(parameters_); });
  comm::Communicator& owners = shards_ ? *groups_.trainers : *groups_.model;
  tracer_.time_collective(owners, OtherEvent::agree_on_norm, {},
                          [&] { owners.all_reduce(std::span(&squares, 1), comm::Reduction::sum); });
  gradient_norm_ = std::sqrt(squares);
}

template <typename Real>
void Trainer<Real>::optimize(std::int64_t step) {
  tracer_.time(Operation::optimize, {}, [&] {
    learning_rate_ = model::learning_rate(experiment_.optimizer, step, experiment_.run.steps);
    model::adamw(parameters_, experiment_.optimizer, learning_rate_, gradient_norm_, step);
  });
  tracer_.sample_memory();
}

template <typename Real>
void Trainer<Real>::write_checkpoint(const std::string& path, std::int64_t step,
                                     const SparseEstimates& estimates,
                                     const config::FileContents& contents) {
  exec::write_checkpoint(experiment_, layout_, *groups_.trainers, parameters_, gradients_,
                         estimates, contents, path, step);
}

template class Trainer<bfloat16>;
template class Trainer<float>;
template class Trainer<double>;

}  // namespace cadenza::exec
