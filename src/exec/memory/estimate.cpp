// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/memory/estimate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <utility>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/memory.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/exec/memory/binding.hpp"
#include "cadenza/exec/memory/index_needs.hpp"
#include "cadenza/exec/memory/nccl_buffers.hpp"
#include "cadenza/exec/memory/shards.hpp"
#include "cadenza/model/shape/activations.hpp"
#include "cadenza/model/shape/parameter_table.hpp"
#include "cadenza/program/stages.hpp"

namespace cadenza::exec {
namespace {

/// What one exchange (one half of ping-pong) grows to over the ticks of a step.
struct HalfNeeds {
  ExchangeNeeds exchange;
  IndexNeeds index;
  std::int64_t rows = 0;
};
/// By half.
using PlanNeeds = std::vector<HalfNeeds>;

PlanNeeds needs_of_plans(std::span<const program::TickPlans> tick_plans,
                         const program::StepShape& step_shape, Rank in_pool) {
  PlanNeeds needs(static_cast<std::size_t>(step_shape.halves));
  for (const program::TickPlans& tick : tick_plans) {
    HalfNeeds& half = needs[at(tick.half)];
    half.index.add(tick, in_pool);
    const Binding binding = bind(tick, in_pool, step_shape.layout.tensor());
    half.exchange.add(binding);
    half.rows = std::max(half.rows, binding.home.rows());
  }
  return needs;
}

/// @param layers  layers x activation buffers: copies of what plans keep on servers
void add_exchanges(const PlanNeeds& needs, const AttentionShape& shape, std::int64_t layers,
                   MemoryEstimate& memory) {
  for (const HalfNeeds& half : needs) {
    const ExchangeNeeds& exchange = half.exchange;
    memory.attention +=
        workspace_bytes(shape, exchange.query_rows, exchange.key_rows, exchange.copies(layers));
    memory.attention += half.index.working + half.index.kept * layers;
    memory.communication += exchange.message_bytes;
  }
}

std::int64_t rotation_bytes(const config::Experiment& e) {
  return table_positions(e) * (e.model.head_dim() / 2) * 2 *
         config::element_bytes(e.run.dtype).accumulator;
}

/// Activations of a stack that says what it keeps (config::KeptBytes). Recomputed parts exist once,
/// those of attention twice with ping-pong, whose halves may be in two layers.
std::int64_t kept_bytes(const config::Experiment& e, const model::ModelPart& part,
                        const program::Program& program, std::int64_t rows) {
  const config::Software& software = e.cluster.software;
  const config::KeptBytes& kept = software.kept;
  const auto tensor = static_cast<double>(e.parallel.tensor);
  const auto whole = static_cast<double>(e.model.d_model);
  const double width = whole / (software.sequence_parallel ? tensor : 1);
  const double middle = kept.width * width + kept.whole_width * whole;
  // Norms of Q and K keep what they read.
  const int normed = e.model.qk_norm ? config::element_bytes(e.run.dtype).element : 0;
  const double attention =
      ((kept.queries + normed) * static_cast<double>(e.model.query_width()) +
       (kept.keys + normed) * static_cast<double>(e.model.kv_heads * e.model.head_dim())) /
      tensor;
  const double ffn = kept.ffn * static_cast<double>(e.model.ffn) / tensor;
  const config::Recompute recompute = e.run.recompute;
  const double layer = middle + attention + ffn;
  double stays = layer;
  if (recompute == config::Recompute::mlp) stays -= ffn;
  if (recompute == config::Recompute::attention) stays -= attention;
  if (recompute == config::Recompute::layer) {
    stays = config::element_bytes(e.run.dtype).element * width;  // its input
  }
  double again = layer - stays;
  const bool both =
      recompute == config::Recompute::attention || recompute == config::Recompute::layer;
  if (both && e.attention.overlap == config::Overlap::ping_pong) again += attention;
  double token = stays * static_cast<double>(program.buffers) * part.most_chunk_layers() + again;
  if (part.head) {
    token += (kept.logits / tensor + kept.whole_logits) * static_cast<double>(e.model.vocab);
  }
  return static_cast<std::int64_t>(token * software.spread * static_cast<double>(rows));
}

/// Elements whose weights a rank stores, and whose gradients, beside its share of the sums.
struct StoredElements {
  std::int64_t weights = 0;
  std::int64_t gradients = 0;
};

/// Returns all of them or, with shards of the parameters, the shard, what lies outside layers, and
/// of layers the present one and, of weights, the one that is gathered meanwhile.
/// @param owned  elements of the shard
StoredElements stored_elements(const program::StepShape& step_shape,
                               const model::ParameterTable& table, std::int64_t owned) {
  if (!step_shape.shards_parameters) return {table.elements, table.elements};
  const std::int64_t layer = model::layer_elements(table, 0).size();
  const auto layers = std::ssize(table.layers);
  const std::int64_t rest = table.elements - layers * layer;
  return {owned + rest + std::min<std::int64_t>(layers, 2) * layer, rest + layer};
}

void add_trainer(const config::Experiment& e, const program::StepShape& step_shape,
                 const program::Program& program, std::int64_t rows, StageHoldings& stages,
                 MemoryEstimate& memory) {
  const program::Layout& layout = step_shape.layout;
  const model::ModelPart part = model_part(e, layout, program.rank);
  const model::ParameterTable& table = stages.parameters(e.model, part);
  const int streams = stages.buffers(step_shape, layout.coordinates(program.rank).pipeline).streams;
  const int replicas = layout.data() * layout.context();
  const std::int64_t sum = config::element_bytes(e.run.dtype).accumulator;
  const config::Software& software = e.cluster.software;
  std::int64_t owned = table.elements;
  if (step_shape.shards_optimizer) {
    const program::Coordinates at = layout.coordinates(program.rank);
    owned =
        GradientShards::owned_elements(table, at.data * layout.context() + at.context, replicas);
    // Its share of the sums, which other stacks keep in place of the gradients.
    const bool beside = step_shape.shards_parameters || !software.says_kept();
    if (beside) memory.gradients += owned * sum;
  }
  if (e.run.device == config::DeviceKind::cuda) memory.other = kProductWorkspace;
  memory.other += software.reserved;
  StoredElements stored = stored_elements(step_shape, table, owned);
  if (step_shape.evaluates) stored.gradients = owned = 0;
  memory.gradients += stored.gradients * config::bytes_of(software.gradients, e.run.dtype);
  memory.optimizer += model::optimizer_bytes(e.run.dtype, owned);
  memory.parameters += stored.weights * config::element_bytes(e.run.dtype).element +
                       memory.gradients + memory.optimizer;
  memory.activations +=
      software.says_kept()
          ? kept_bytes(e, part, program, rows)
          : model::activation_bytes(e.model, part,
                                    capacity_of(e, step_shape, program.rank, rows, program.buffers),
                                    e.run.recompute, e.run.dtype);
  const int element = config::bytes_of(e.residual(), e.run.dtype);
  memory.communication += streams * (rows / layout.tensor() * e.model.d_model * element);
}

/// Returns the connection ends of one half's attention: the number of other ranks to which this one
/// sends, plus that of those from which it receives.
std::int64_t attention_ends(std::span<const program::TickPlans> tick_plans, Rank in_pool, int half,
                            bool results) {
  std::set<std::pair<Rank, bool>> ends;
  for (const program::TickPlans& tick : tick_plans) {
    if (tick.half != half) continue;
    for (const program::Pass pass : {program::Pass::forward, program::Pass::backward}) {
      const program::Traffic& traffic = tick.traffic(pass);
      for (int stage = 0; stage < traffic.stages(); ++stage) {
        for (const program::PlannedMessage& planned : traffic.messages(stage)) {
          if (planned.results != results) continue;
          if (planned.from == in_pool) ends.emplace(planned.to, true);
          if (planned.to == in_pool) ends.emplace(planned.from, false);
        }
      }
    }
  }
  return static_cast<std::int64_t>(ends.size());
}

/// Returns the connection ends of a trainer in a pipeline: one for each edge and pass.
std::int64_t stream_ends(const program::StepShape& step_shape, Rank trainer) {
  const int stages = step_shape.layout.pipeline();
  if (stages == 1) return 0;
  if (step_shape.pipeline.chunks > 1) return 4;
  const int stage = step_shape.layout.coordinates(trainer).pipeline;
  return stage == 0 || stage + 1 == stages ? 2 : 4;
}

}  // namespace

model::ModelPart model_part(const config::Experiment& experiment, const program::Layout& layout,
                            Rank trainer) {
  const program::Coordinates at = layout.coordinates(trainer);
  const std::int64_t stages = layout.pipeline();
  const std::vector<Range> parts = program::stage_layers(experiment);
  model::ModelPart part;
  for (std::int64_t chunk = 0; chunk < experiment.parallel.chunks; ++chunk) {
    part.chunks.push_back(parts[cadenza::at(chunk * stages + at.pipeline)]);
  }
  part.embedding = at.pipeline == 0;
  part.head = at.pipeline + 1 == stages;
  part.tensor_rank = at.tensor;
  part.tensor_size = layout.tensor();
  return part;
}

bool uses_nccl(const config::Experiment& e) {
  using config::Transport;
  return nccl::kHasLibrary &&
         (e.run.transport == Transport::nccl || e.run.transport == Transport::automatic);
}

std::int64_t nccl_bytes(const program::StepShape& step_shape, Rank rank,
                        std::span<const program::TickPlans> tick_plans) {
  const program::Layout& layout = step_shape.layout;
  std::int64_t bytes = 0;
  for (int half = 0; half < step_shape.halves; ++half) {
    for (const bool results : {false, true}) {
      bytes += nccl::buffer_bytes(Purpose::attention,
                                  attention_ends(tick_plans, layout.in_pool(rank), half, results));
    }
  }
  if (!layout.trains(rank)) return bytes;
  bytes += nccl::buffer_bytes(Purpose::streams, stream_ends(step_shape, rank));
  bytes += nccl::buffer_bytes(Purpose::gradients,
                              nccl::ends_of_collectives(layout.data() * layout.context()));
  // Shards go to every rank of the tensor group, what is summed at once in a ring.
  const int tensor = layout.tensor();
  bytes +=
      nccl::buffer_bytes(Purpose::slices, 2 * (tensor - 1) + nccl::ends_of_collectives(tensor));
  return bytes;
}

std::int64_t usual_rows(const config::Experiment& e) {
  const config::Parallel& p = e.parallel;
  return e.batch.microbatch / p.context / p.tensor * p.tensor;
}

model::Capacity capacity_of(const config::Experiment& experiment,
                            const program::StepShape& step_shape, Rank trainer, std::int64_t rows,
                            int buffers) {
  const int stage = step_shape.layout.coordinates(trainer).pipeline;
  return {rows,
          buffers,
          experiment.run.device,
          experiment.parallel.tensor_sums,
          experiment.residual(),
          step_shape.offloads ? step_shape.slots(stage) : 0,
          step_shape.halves};
}

std::int64_t table_positions(const config::Experiment& e) {
  return e.attention.mask().positions(std::max(e.batch.microbatch, e.data.max_document));
}

std::string MemoryEstimate::largest() const {
  const std::array<std::pair<std::int64_t, const char*>, 6> kinds = {
      {{parameters, "weights, gradients and optimizer"},
       {activations, "activations"},
       {attention, "attention workspace"},
       {communication - nccl, "message buffers"},
       {nccl, "buffers of NCCL, which NCCL_MAX_CTAS and NCCL_BUFFSIZE bound, at most"},
       {other, "libraries of the device"}}};
  const auto top = std::ranges::max_element(kinds, {}, [](const auto& kind) { return kind.first; });
  return fmt::format("{} {}", top->second, format_bytes(static_cast<double>(top->first)));
}

namespace {

/// Every number of an estimate, combined with that of another.
template <typename Combine>
void combine(MemoryEstimate& a, const MemoryEstimate& b, Combine combine_numbers) {
  for (const auto field :
       {&MemoryEstimate::parameters, &MemoryEstimate::activations, &MemoryEstimate::attention,
        &MemoryEstimate::communication, &MemoryEstimate::nccl, &MemoryEstimate::other,
        &MemoryEstimate::gradients, &MemoryEstimate::optimizer}) {
    a.*field = combine_numbers(a.*field, b.*field);
  }
}

}  // namespace

MemoryEstimate& MemoryEstimate::operator+=(const MemoryEstimate& more) {
  combine(*this, more, std::plus());
  return *this;
}

MemoryEstimate& MemoryEstimate::operator-=(const MemoryEstimate& less) {
  combine(*this, less, std::minus());
  return *this;
}

MemoryEstimate larger_of_each(const MemoryEstimate& a, const MemoryEstimate& b) {
  MemoryEstimate most = a;
  combine(most, b, [](std::int64_t x, std::int64_t y) { return std::max(x, y); });
  return most;
}

namespace {

MemoryEstimate estimate_rank(const config::Experiment& e, const program::StepShape& step_shape,
                             const program::Program& program,
                             std::span<const program::TickPlans> tick_plans, const PlanNeeds& needs,
                             StageHoldings& stages) {
  const program::Layout& layout = step_shape.layout;
  MemoryEstimate memory;
  add_exchanges(needs, tick_plans.front().forward.workload.shape,
                program.buffers * step_shape.layers_of_rank(program.rank), memory);
  memory.attention += rotation_bytes(e);
  if (uses_nccl(e)) memory.nccl = nccl_bytes(step_shape, program.rank, tick_plans);
  memory.communication += memory.nccl;
  if (!layout.trains(program.rank)) return memory;
  const std::int64_t rows = std::ranges::max(needs, {}, &HalfNeeds::rows).rows;
  add_trainer(e, step_shape, program, std::max(rows, usual_rows(e)), stages, memory);
  return memory;
}

}  // namespace

std::vector<MemoryEstimate> estimate_memory(const config::Experiment& experiment,
                                            const program::StepShape& step_shape,
                                            std::span<const program::Program> programs,
                                            std::span<const program::TickPlans> tick_plans) {
  StageHoldings stages;
  std::map<Rank, PlanNeeds> needs;  // of a rank in its pool: alike in all pools
  std::vector<MemoryEstimate> memory;
  for (const program::Program& program : programs) {
    const Rank in_pool = step_shape.layout.in_pool(program.rank);
    const auto [mine, fresh] = needs.try_emplace(in_pool);
    if (fresh) mine->second = needs_of_plans(tick_plans, step_shape, in_pool);
    memory.push_back(
        estimate_rank(experiment, step_shape, program, tick_plans, mine->second, stages));
  }
  return memory;
}

MemoryEstimate estimate_memory(const config::Experiment& experiment,
                               const program::StepShape& step_shape,
                               const program::Program& program,
                               std::span<const program::TickPlans> tick_plans) {
  return estimate_memory(experiment, step_shape, {&program, 1}, tick_plans).front();
}

StageHoldings::Counts StageHoldings::buffers(const program::StepShape& step_shape, int stage) {
  const program::PipelineShape& shape = step_shape.pipeline;
  const std::array key{shape.stages,
                       shape.chunks,
                       shape.microbatches,
                       step_shape.layout.pools_stages() ? 1 : 0,
                       step_shape.evaluates ? 1 : 0,
                       stage};
  const std::lock_guard lock(mutex_);
  const auto [found, fresh] = buffers_.try_emplace(key);
  if (fresh) {
    found->second = {program::buffers_of_stage(step_shape, stage),
                     program::stream_buffers_of_stage(step_shape, stage).total()};
  }
  return found->second;
}

const model::ParameterTable& StageHoldings::parameters(const config::Model& model,
                                                       const model::ModelPart& part) {
  const std::array key{static_cast<int>(part.layers()), part.embedding ? 1 : 0, part.head ? 1 : 0,
                       part.tensor_rank, part.tensor_size};
  const std::lock_guard lock(mutex_);
  const auto [found, fresh] = parameters_.try_emplace(key);
  if (fresh) found->second = model::make_parameter_table(model, part);
  return found->second;
}

namespace {

MemoryEstimate least_memory_of(const config::Experiment& e, const program::StepShape& step_shape,
                               Rank trainer, StageHoldings& stages) {
  const int stage = step_shape.layout.coordinates(trainer).pipeline;
  MemoryEstimate memory;
  memory.attention = rotation_bytes(e);
  add_trainer(e, step_shape, {trainer, stages.buffers(step_shape, stage).microbatches, {}},
              usual_rows(e), stages, memory);
  return memory;
}

}  // namespace

MemoryEstimate least_memory(const config::Experiment& e, const program::StepShape& step_shape,
                            Rank trainer) {
  StageHoldings stages;
  return least_memory_of(e, step_shape, trainer, stages);
}

MemoryEstimate least_memory(const config::Experiment& e) {
  StageHoldings stages;
  return least_memory(e, stages);
}

MemoryEstimate least_memory(const config::Experiment& e, StageHoldings& stages) {
  const program::StepShape step_shape(e);
  const int last = step_shape.layout.pipeline() - 1;
  MemoryEstimate most;
  int layers = 0;
  for (int stage = 0; stage <= last; ++stage) {
    // Earlier stages hold no fewer microbatches, so later ones count if they have more layers.
    const int mine = step_shape.layers_of_stage(stage);
    if (mine <= layers && stage < last) continue;
    layers = std::max(layers, mine);
    const Rank trainer = step_shape.layout.rank({0, stage, 0, 0});
    const MemoryEstimate memory = least_memory_of(e, step_shape, trainer, stages);
    if (memory.total() > most.total()) most = memory;
  }
  return most;
}

MemoryLimit memory_limit(const config::Run& run, const MemoryLimit& device) {
  if (run.memory > 0) return {run.memory, "run.memory"};
  return run.device == config::DeviceKind::cuda ? device : MemoryLimit{};
}

void require_memory(const MemoryLimit& limit, Rank rank, const MemoryEstimate& memory) {
  if (limit.bytes == 0 || memory.total() <= limit.bytes) return;
  const auto bytes = [](std::int64_t value) { return format_bytes(static_cast<double>(value)); };
  fail(ExitCode::usage,
       "{}: found {}, but rank {} needs {} (most of it: {}); valid: at least {}, or a "
       "smaller batch.microbatch, run.recompute = layer, parallel.shard = optimizer, or more ranks "
       "in parallel.tensor, parallel.context or parallel.pipeline",
       limit.source, bytes(limit.bytes), rank, bytes(memory.total()), memory.largest(),
       memory.total());
}

void require_memory(const MemoryLimit& limit, Rank rank, const config::Experiment& experiment,
                    const program::StepPlan& plan) {
  if (limit.bytes == 0) return;
  require_memory(
      limit, rank,
      estimate_memory(experiment, program::StepShape(experiment), plan.program, plan.tick_plans));
}

}  // namespace cadenza::exec
