// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cadenza/base/error.hpp"
#include "cadenza/base/units.hpp"
#include "cadenza/exec/binding.hpp"
#include "cadenza/exec/executor.hpp"
#include "cadenza/exec/index_exchange.hpp"
#include "cadenza/kernels/matmul.hpp"
#include "cadenza/model/estimate.hpp"
#include "exec/collectives/gradients.hpp"

namespace cadenza::exec {
namespace {

/// What one exchange (of a half, in ping-pong) grows to over the ticks of a step.
void add_exchange(std::span<const program::TickPlans> ticks, Rank in_pool, int part, int align,
                  int copies, MemoryEstimate& memory, std::int64_t& rows) {
  const plan::AttentionShape& shape = ticks.front().forward.workload.shape;
  ExchangeNeeds needs;
  IndexNeeds index;
  for (const program::TickPlans& tick : ticks) {
    if (tick.part != part) continue;
    index.add(tick, in_pool);
    const Binding binding = bind(tick, in_pool, align);
    needs.add(shape, binding, copies);
    rows = std::max(rows, binding.home.rows());
  }
  const bool widens = shape.element_bytes < shape.accumulator_bytes;
  memory.attention += workspace_bytes(shape, needs.query_rows, needs.key_rows, needs.copies);
  memory.attention += index.working + index.kept * copies;
  memory.communication +=
      needs.message_bytes + (widens ? needs.arriving * shape.accumulator_bytes : 0);
}

std::int64_t rotation_bytes(const config::Experiment& e) {
  return table_positions(e) * (e.model.head_dim() / 2) * 2 *
         config::element_bytes(e.run.dtype).accumulator;
}

void add_trainer(const config::Experiment& e, const program::StepShape& step_shape,
                 const program::Program& program, std::int64_t rows, MemoryEstimate& memory) {
  const program::Layout& layout = step_shape.layout;
  const model::ModelPart part = model_part(e, layout, program.rank);
  const model::ParameterTable table = model::make_parameter_table(e.model, part);
  const int replicas = layout.data() * layout.context();
  const std::int64_t sum = config::element_bytes(e.run.dtype).accumulator;
  std::int64_t owned = table.elements;
  if (step_shape.shards_optimizer) {
    const program::Coordinates at = layout.coordinates(program.rank);
    owned = 0;
    for (const Range& range :
         GradientShards(table, replicas).owned(at.data * layout.context() + at.context)) {
      owned += range.size();
    }
    memory.gradients += owned * sum;  // their summed share
  }
  memory.other = kernels::product_workspace_bytes();
  memory.parameters += memory.gradients;
  memory.gradients += table.elements * sum;
  memory.optimizer += 2 * owned * sum;
  memory.parameters += model::parameter_bytes(e.model, part, e.run.dtype, owned);
  memory.activations +=
      model::activation_bytes(e.model, part, {rows, program.buffers}, e.run.recompute, e.run.dtype);
  if (layout.pipeline() > 1) {  // one stream on its way in each direction, one arriving
    memory.communication += 3 * rows / layout.tensor() * e.model.d_model * sum;
  }
}

}  // namespace

std::int64_t usual_rows(const config::Experiment& e) {
  const config::Parallel& p = e.parallel;
  return e.batch.microbatch / p.context / p.tensor * p.tensor;
}

std::int64_t table_positions(const config::Experiment& e) {
  return e.attention.mask().positions(std::max(e.batch.microbatch, e.data.max_document));
}

std::string MemoryEstimate::largest() const {
  const std::array<std::pair<std::int64_t, const char*>, 5> kinds = {
      {{parameters, "parameters, gradients and moments"},
       {activations, "activations"},
       {attention, "attention workspace"},
       {communication, "message buffers"},
       {other, "libraries of the device"}}};
  const auto top = std::ranges::max_element(kinds, {}, [](const auto& kind) { return kind.first; });
  return fmt::format("{} {}", top->second, format_bytes(static_cast<double>(top->first)));
}

MemoryEstimate estimate_memory(const config::Experiment& e, const program::StepShape& step_shape,
                               const program::Program& program,
                               std::span<const program::TickPlans> ticks) {
  const program::Layout& layout = step_shape.layout;
  MemoryEstimate memory;
  std::int64_t rows = 0;
  const int copies = program.buffers * step_shape.layers * step_shape.pipeline.chunks;
  for (int part = 0; part < step_shape.parts; ++part) {
    add_exchange(ticks, layout.in_pool(program.rank), part, layout.tensor(), copies, memory, rows);
  }
  memory.attention += rotation_bytes(e);
  if (!layout.trains(program.rank)) return memory;
  add_trainer(e, step_shape, program, std::max(rows, usual_rows(e)), memory);
  return memory;
}

MemoryEstimate least_memory(const config::Experiment& e, const program::StepShape& step_shape,
                            Rank trainer) {
  const int stage = step_shape.layout.coordinates(trainer).pipeline;
  MemoryEstimate memory;
  memory.attention = rotation_bytes(e);
  add_trainer(e, step_shape, {trainer, program::buffers_of_stage(step_shape, stage), {}},
              usual_rows(e), memory);
  return memory;
}

void require_memory(const config::Experiment& experiment, Rank rank, const MemoryEstimate& memory) {
  if (experiment.run.memory == 0 || memory.total() <= experiment.run.memory) return;
  const auto bytes = [](std::int64_t value) { return format_bytes(static_cast<double>(value)); };
  fail(ExitCode::usage,
       "run.memory: found {}, but rank {} needs {} (most of it: {}); valid: at least {}, or a "
       "smaller batch.microbatch, run.recompute = layer, parallel.shard = optimizer, or more ranks "
       "in parallel.tensor, parallel.context or parallel.pipeline",
       bytes(experiment.run.memory), rank, bytes(memory.total()), memory.largest(), memory.total());
}

}  // namespace cadenza::exec
