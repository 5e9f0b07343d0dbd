// SPDX-License-Identifier: Apache-2.0
// Builds the program of a rank for one step from plans, layout and schedule:
// - microbatch_passes() gives the order of passes (1F1B, interleaved or phase-aligned). Every pass
//   runs the layers of one chunk; between stages, residual streams are received and sent, in an
//   order of messages that all stages share (stream_order.hpp);
// - a layer's pass is what precedes attention, the exchange of its plan (exchange.hpp: post, wait,
//   attend, results), and what follows attention. In ping-pong the two halves of a microbatch take
//   turns, so that messages of one are under way while the other computes;
// - the backward pass runs layers and halves in reverse, may recompute a layer's forward pass
//   first, and starts the sum of a layer's gradients after its last microbatch;
// - with offloading, what a layer keeps is copied into host memory once the next layer has read it,
//   and fetched when the memory of a layer is free, two layers ahead of the backward pass;
// - where ranks have shards of the parameters, every pass gathers each layer's, the next one's
//   while a layer computes, and starts the sum of its gradients at once. What lies outside layers
//   is gathered once a step. Other stacks may gather updated parameters beside the first forward
//   pass, and sum gradients after all;
// - the step ends with the other gradient sums, the norm and the update.
// Evaluation has forward passes only, and a microbatch's loss right after its last one.
// Dedicated servers, and stages without a microbatch, run the exchanges only.
#include "cadenza/program/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "cadenza/base/at.hpp"
#include "cadenza/program/stages.hpp"
#include "program/attention_operations.hpp"
#include "program/stream_order.hpp"

namespace cadenza::program {

class BufferPool {
 public:
  void take(int microbatch, int chunk) {
    if (free_.empty()) free_.insert(count_++);
    taken_[{microbatch, chunk}] = *free_.begin();
    free_.erase(free_.begin());
  }
  int of(int microbatch, int chunk) const { return taken_.at({microbatch, chunk}); }
  void release(int microbatch, int chunk) {
    free_.insert(of(microbatch, chunk));
    taken_.erase({microbatch, chunk});
  }
  int count() const { return count_; }

 private:
  int count_ = 0;
  std::set<int> free_;
  std::map<std::pair<int, int>, int> taken_;
};

namespace {

constexpr int kPasses = 3;  ///< forward, backward and recompute of attention: the first Phases

/// Appends one rank's operations to a program.
class Builder {
 public:
  Builder(const StepShape& step_shape, Rank rank, std::span<const TickPlans> tick_plans)
      : step_shape_(step_shape),
        layout_(step_shape.layout),
        trainer_(layout_.trains(rank)),
        at_(trainer_ ? layout_.coordinates(rank) : Coordinates{}),
        tick_plans_(tick_plans),
        index_(step_shape, tick_plans),
        program_{rank, 1, {}} {
    if (trainer_ && layout_.pipeline() > 1) streams_ = order_streams(step_shape, at_.pipeline);
  }

  Program build() {
    gather_first();
    for (const MicrobatchPass& unit : microbatch_passes(step_shape_, trainer_, at_.pipeline)) {
      if (!streams_.begins.empty()) post_receives({streams_.begins[unit_] + 1});
      unit.pass == Pass::forward ? add_forward(unit) : add_backward(unit);
      ++unit_;
    }
    if (trainer_ && !step_shape_.evaluates) add_update();
    program_.buffers = std::max(1, buffers_.count());  // a server needs one
    return std::move(program_);
  }

 private:
  void add_update() {
    if (step_shape_.sums_late) {
      for (int layer = step_shape_.layers_of_stage(at_.pipeline) - 1; layer >= 0; --layer) {
        add({.operation = Operation::reduce_layer, .pass = Pass::backward, .layer = layer});
      }
    }
    add({.operation = Operation::reduce_gradients, .pass = Pass::backward});
    add({.operation = Operation::gradient_norm, .pass = Pass::backward});
    add({.operation = Operation::optimize, .pass = Pass::backward});
    if (!step_shape_.gathers_after()) return;
    add({.operation = Operation::gather_parameters, .pass = Pass::backward});
  }

  // --- One pass of a microbatch ---

  void add_forward(const MicrobatchPass& unit) {
    if (unit.microbatch >= 0) {
      buffers_.take(unit.microbatch, unit.chunk);
      gather(unit, Pass::forward, 0);
      add(of(unit, Operation::load));
      copy(unit, Operation::wait_for_copy, 0);
      enter(unit);
    }
    add_layers(unit, Pass::forward);
    if (unit.microbatch >= 0 && !is_last(unit)) send(unit);
    offload(unit, layers_of(unit) - 1);
    if (unit.microbatch < 0 || !step_shape_.evaluates) return;
    if (is_last(unit)) add_parts(of(unit, Operation::loss));
    buffers_.release(unit.microbatch, unit.chunk);
  }

  void add_backward(const MicrobatchPass& unit) {
    const bool trains = unit.microbatch >= 0;
    gather(unit, Pass::backward, 0);
    for (int ahead = 1; ahead <= slots(); ++ahead) fetch(unit, layers_of(unit) - ahead);
    if (trains && is_last(unit)) {
      copy(unit, Operation::wait_for_copy, layers_of(unit) - 1);
      add_parts(of(unit, Operation::loss));
    }
    if (trains && !is_last(unit)) add(stream(unit, Operation::receive));
    add_layers(unit, Pass::backward);
    if (!trains) return;
    if (is_first(unit)) {
      add_parts(of(unit, Operation::embed_gradient));
    } else {
      send(unit);
    }
    buffers_.release(unit.microbatch, unit.chunk);
  }

  void enter(const MicrobatchPass& unit) {
    if (is_first(unit)) {
      add_parts(of(unit, Operation::embed));
    } else {
      add(stream(unit, Operation::receive));
    }
  }

  void send(const MicrobatchPass& unit) {
    post_receives(place_of_send(step_shape_, at_.pipeline, unit, streams_.begins[unit_]));
    add(stream(unit, Operation::send));
  }

  /// Posts the receives that come before `place` in the order of the pipeline.
  void post_receives(const StreamPlace& place) {
    for (; posted_ < streams_.arrivals.size(); ++posted_) {
      const StreamArrival& next = streams_.arrivals[posted_];
      if (next.place >= place) return;
      add(stream(next.unit, Operation::post_receive));
    }
  }

  /// Adds the layers of a unit in the order of its pass. The halves of a microbatch take turns: the
  /// transfers of one are under way while the other computes (DistCA, figure 7).
  void add_layers(const MicrobatchPass& unit, Pass pass) {
    const int layers = layers_of(unit);
    for (int i = 0; i < layers; ++i) {
      if (i == 0) for_each_half(pass, [&](int half) { add_start(unit, pass, i, half); });
      if (pass == Pass::backward && recomputes_attention()) add_recomputed(unit, i);
      for_each_half(pass, [&](int half) { add_tasks(unit, pass, i, half); });
      for_each_half(pass, [&](int half) {
        add_end(unit, pass, i, half);
        if (i + 1 < layers) add_start(unit, pass, i + 1, half);
      });
    }
  }

  // --- Activations that wait in host memory ---

  int slots() const { return step_shape_.offloads ? step_shape_.slots(at_.pipeline) : 0; }

  /// Adds a copy of what a layer of the unit's chunk keeps, or a wait for it.
  void copy(const MicrobatchPass& unit, Operation operation, int layer) {
    if (unit.microbatch < 0 || slots() == 0 || layer < 0 || layer >= layers_of(unit)) return;
    const int i = unit.pass == Pass::forward ? layer : layers_of(unit) - 1 - layer;
    Instruction instruction = with(at_layer(unit, unit.pass, i, 0), operation);
    instruction.slot = layer % slots();
    add(instruction);
  }
  bool stays(const MicrobatchPass& unit, int layer) const {
    return layer >= layers_of(unit) - step_shape_.staying_layers(at_.pipeline);
  }
  void offload(const MicrobatchPass& unit, int layer) {
    if (!stays(unit, layer)) copy(unit, Operation::offload, layer);
  }
  void fetch(const MicrobatchPass& unit, int layer) {
    if (!stays(unit, layer)) copy(unit, Operation::fetch, layer);
  }

  // --- Parameters of a layer, where ranks have shards of them ---

  /// Gathers the parameters of the pass' i-th layer, if there is one.
  void gather(const MicrobatchPass& unit, Pass pass, int i) {
    const bool gathers = step_shape_.shards_parameters && unit.microbatch >= 0;
    if (!gathers || i == layers_of(unit)) return;
    add(of_parameters(unit, pass, i, Operation::gather_layer));
  }

  Instruction of_parameters(const MicrobatchPass& unit, Pass pass, int i,
                            Operation operation) const {
    Instruction instruction = with(at_layer(unit, pass, i, 0), operation);
    instruction.buffer = -1;  // it touches no activations
    return instruction;
  }

  /// Adds what comes before the computation of a half of the pass' i-th layer. The next layer's
  /// parameters are gathered once the layer before is over, which leaves two at a time.
  void wait_and_gather(const MicrobatchPass& unit, Pass pass, int i, int half) {
    const bool ahead = step_shape_.gathers_ahead && pass == Pass::forward && unit.microbatch == 0;
    if (unit.microbatch < 0 || !(step_shape_.shards_parameters || ahead)) return;
    const int first = pass == Pass::forward ? 0 : step_shape_.halves - 1;
    const int last = step_shape_.halves - 1 - first;
    if (half == first) add(of_parameters(unit, pass, i, Operation::wait_layer));
    if (half == last) gather(unit, pass, i + 1);
  }

  /// Gathers the embedding or head of this rank's stage for the whole step and, where updated
  /// parameters are gathered beside the first forward pass, those of all layers after them.
  void gather_first() {
    if (!trainer_ || !(step_shape_.shards_parameters || step_shape_.gathers_ahead)) return;
    const bool rest = at_.pipeline == 0 || at_.pipeline + 1 == layout_.pipeline();
    if (rest) add({.operation = Operation::gather_layer});
    const int ahead = step_shape_.gathers_ahead ? step_shape_.layers_of_stage(at_.pipeline) : 0;
    for (int layer = 0; layer < ahead; ++layer) {
      add({.operation = Operation::gather_layer, .layer = layer});
    }
    if (rest) add({.operation = Operation::wait_layer});
  }

  // --- The operations of a layer ---

  /// Adds the operations before the attention of the pass' i-th layer, up to its first messages.
  void add_start(const MicrobatchPass& unit, Pass pass, int i, int half) {
    const Instruction instruction = at_layer(unit, pass, i, half);
    const bool trains = unit.microbatch >= 0;
    wait_and_gather(unit, pass, i, half);
    if (pass == Pass::forward) {
      if (trains) add(with(instruction, Operation::attention_inputs));
      // The norm of these inputs was the last to read the layer before.
      if (half + 1 == step_shape_.halves) offload(unit, i - 1);
    } else {
      if (half + 1 == step_shape_.halves) {
        copy(unit, Operation::wait_for_copy, layers_of(unit) - 1 - i);
      }
      if (recomputes_attention()) return start_again(unit, i, half);
      start_gradient(instruction, trains);
      return;
    }
    start_exchange(instruction);
  }

  /// Adds the operations before the gradient of a layer's attention, up to its first messages.
  void start_gradient(const Instruction& instruction, bool trains) {
    if (trains) add(with(instruction, Operation::attention_outputs));
    if (trains) add(with(instruction, Operation::begin_attention));
    start_exchange(instruction);
  }

  /// Adds the first messages of an exchange. Those of the index come first, as they take longest.
  void start_exchange(const Instruction& instruction) {
    exchange(instruction).add_index_start(instruction, program_.instructions);
    exchange(instruction).add_start(instruction, program_.instructions);
    exchange(instruction).add_index(instruction, program_.instructions);
  }

  void add_tasks(const MicrobatchPass& unit, Pass pass, int i, int half) {
    const Instruction instruction = at_layer(unit, pass, i, half);
    exchange(instruction).add_tasks(instruction, program_.instructions);
  }

  void add_end(const MicrobatchPass& unit, Pass pass, int i, int half) {
    const Instruction instruction = at_layer(unit, pass, i, half);
    exchange(instruction).add_end(instruction, program_.instructions);
    if (unit.microbatch < 0) return;
    if (pass == Pass::forward) {
      if (half == 0) copy(unit, Operation::wait_for_copy, i + 1);  // they write its stream
      add(with(instruction, Operation::attention_outputs));
      return;
    }
    add(with(instruction, Operation::attention_inputs));
    const bool last_half = half == 0;  // the backward pass runs the second half first
    if (last_half) fetch(unit, layers_of(unit) - 1 - i - slots());
    const bool last = unit.microbatch + 1 == step_shape_.pipeline.microbatches;
    const bool sums = step_shape_.shards_parameters || (last && !step_shape_.sums_late);
    if (last_half && sums) {
      add(with(instruction, Operation::reduce_layer));
    }
  }

  // The forward pass of a layer's attention block (or whole layer) once more, before its backward
  // pass and in the same order of halves. The first half sees keys of the second, so that the
  // inputs of both come first.

  void start_again(const MicrobatchPass& unit, int i, int half) {
    if (unit.microbatch >= 0 && half + 1 == step_shape_.halves) {
      for_each_half(Pass::backward, [&](int each) {
        add(with(again(unit, i, each), Operation::attention_inputs));
      });
    }
    start_exchange(again(unit, i, half));
  }

  /// Adds the rest of it, and the start of the gradient of each half.
  void add_recomputed(const MicrobatchPass& unit, int i) {
    const bool trains = unit.microbatch >= 0;
    for_each_half(Pass::backward, [&](int half) {
      const Instruction instruction = again(unit, i, half);
      exchange(instruction).add_tasks(instruction, program_.instructions);
    });
    for_each_half(Pass::backward, [&](int half) {
      const Instruction instruction = again(unit, i, half);
      exchange(instruction).add_end(instruction, program_.instructions);
      if (trains && step_shape_.recompute == config::Recompute::layer) {
        add(with(instruction, Operation::attention_outputs));
      }
      start_gradient(at_layer(unit, Pass::backward, i, half), trains);
    });
  }

  Instruction again(const MicrobatchPass& unit, int i, int half) const {
    Instruction instruction = at_layer(unit, Pass::backward, i, half);
    instruction.recompute = true;
    instruction.pass = Pass::forward;
    return instruction;
  }

  bool recomputes_attention() const {
    return step_shape_.recompute == config::Recompute::attention ||
           step_shape_.recompute == config::Recompute::layer;
  }

  // --- Instructions ---

  void add(const Instruction& instruction) { program_.instructions.push_back(instruction); }

  void add_parts(Instruction instruction) {
    for_each_half(instruction.pass, [&](int half) {
      instruction.half = half;
      instruction.plan = index_.plan(instruction.tick, half, -1);
      add(instruction);
    });
  }

  template <typename Action>
  void for_each_half(Pass pass, Action action) const {
    for (int n = 0; n < step_shape_.halves; ++n) {
      action(pass == Pass::forward ? n : step_shape_.halves - 1 - n);
    }
  }

  static Instruction with(Instruction instruction, Operation operation) {
    instruction.operation = operation;
    return instruction;
  }

  Instruction of(const MicrobatchPass& unit, Operation operation) const {
    Instruction instruction;
    instruction.operation = operation;
    instruction.pass = unit.pass;
    instruction.tick = unit.tick;
    instruction.plan = index_.plan(unit.tick, 0, -1);
    instruction.microbatch = unit.microbatch;
    instruction.chunk = unit.chunk;
    const bool early = operation == Operation::post_receive;  // its buffer is still in use
    if (unit.microbatch >= 0 && !early)
      instruction.buffer = buffers_.of(unit.microbatch, unit.chunk);
    return instruction;
  }

  /// Returns the instruction of the i-th layer that the pass runs.
  Instruction at_layer(const MicrobatchPass& unit, Pass pass, int i, int half) const {
    Instruction instruction = of(unit, Operation::post);
    instruction.half = half;
    const int within = pass == Pass::forward ? i : layers_of(unit) - 1 - i;
    instruction.layer = within;
    for (int chunk = 0; chunk < unit.chunk; ++chunk) instruction.layer += chunk_layers(chunk);
    instruction.plan =
        index_.plan(unit.tick, half, step_shape_.model_layer(at_.pipeline, instruction.layer));
    return instruction;
  }

  int layers_of(const MicrobatchPass& unit) const { return chunk_layers(unit.chunk); }
  int chunk_layers(int chunk) const {
    return static_cast<int>(step_shape_.chunk_layers(at_.pipeline, chunk).size());
  }

  const AttentionOperations& exchange(const Instruction& instruction) {
    const auto key = std::pair(instruction.plan, instruction.pass);
    const auto found = exchanges_.find(key);
    if (found != exchanges_.end()) return found->second;
    const TickPlans& plans = tick_plans_[at(instruction.plan)];
    return exchanges_
        .emplace(key, AttentionOperations(plans, instruction.pass, layout_.in_pool(program_.rank)))
        .first->second;
  }

  bool is_first(const MicrobatchPass& unit) const { return at_.pipeline == 0 && unit.chunk == 0; }
  bool is_last(const MicrobatchPass& unit) const {
    return at_.pipeline + 1 == layout_.pipeline() && unit.chunk + 1 == step_shape_.pipeline.chunks;
  }

  /// Returns the instruction of a send to, or a receive from, a neighbouring stage.
  Instruction stream(const MicrobatchPass& unit, Operation operation) const {
    Instruction instruction = of(unit, operation);
    const int along = unit.pass == Pass::forward ? 1 : -1;
    const int stages = layout_.pipeline();
    Coordinates peer = at_;
    peer.pipeline += operation == Operation::send ? along : -along;
    peer.pipeline = (peer.pipeline + stages) % stages;
    instruction.peer = layout_.rank(peer);
    return instruction;
  }

  const StepShape& step_shape_;
  const Layout& layout_;
  bool trainer_;
  Coordinates at_;
  std::span<const TickPlans> tick_plans_;
  PlanIndex index_;
  std::map<std::pair<int, Pass>, AttentionOperations> exchanges_;
  BufferPool buffers_;
  StreamOrder streams_;     ///< empty without neighbouring stages
  std::size_t unit_ = 0;    ///< index of the unit that is being added
  std::size_t posted_ = 0;  ///< number of arrivals that are posted
  Program program_;
};

}  // namespace

StepShape::StepShape(const config::Experiment& e)
    : layout(e),
      pipeline{static_cast<int>(e.parallel.pipeline), static_cast<int>(e.parallel.chunks),
               static_cast<int>(e.batch.tokens / (e.batch.microbatch * e.parallel.data))},
      parts(stage_layers(e)),
      halves(e.attention.overlap == config::Overlap::ping_pong ? 2 : 1),
      recompute(e.run.recompute),
      offloads(e.run.offload == config::Offload::activations && !e.run.evaluates),
      shards_optimizer(e.parallel.shard != config::Shard::none),
      shards_parameters(e.parallel.shard == config::Shard::parameters),
      gathers_ahead(e.parallel.shard == config::Shard::optimizer &&
                    e.cluster.software.overlaps_gathers),
      sums_late(!e.cluster.software.overlaps_gradients && !shards_parameters),
      evaluates(e.run.evaluates) {
  for (int stage = 0; stage < pipeline.stages; ++stage) {
    most_layers = std::max(most_layers, layers_of_stage(stage));
  }
}

int StepShape::slots(int stage) const {
  constexpr std::int64_t kSlots = 3;  // one computes, one arrives, one leaves or arrives
  std::int64_t most = 0;
  for (int chunk = 0; chunk < pipeline.chunks; ++chunk) {
    most = std::max(most, chunk_layers(stage, chunk).size());
  }
  return static_cast<int>(std::min(kSlots, most));
}

int StepShape::staying_layers(int stage) const {
  return pipeline.stages * pipeline.chunks == 1 ? slots(stage) : 0;
}

int StepShape::model_layer(int stage, int layer) const {
  int chunk = 0;
  for (; layer >= chunk_layers(stage, chunk).size(); ++chunk) {
    layer -= static_cast<int>(chunk_layers(stage, chunk).size());
  }
  return static_cast<int>(chunk_layers(stage, chunk).begin) + layer;
}

int StepShape::layers_of_stage(int stage) const {
  std::int64_t layers = 0;
  for (int chunk = 0; chunk < pipeline.chunks; ++chunk) layers += chunk_layers(stage, chunk).size();
  return static_cast<int>(layers);
}

int StepShape::layers_of_rank(Rank rank) const {
  return layers_of_stage(layout.trains(rank) ? layout.coordinates(rank).pipeline : 0);
}

std::vector<Tick> StepShape::ticks() const {
  std::vector<Tick> ticks;
  if (layout.pools_stages() && layout.pipeline() > 1) {
    ticks = phase_aligned(pipeline);
    if (evaluates) std::erase_if(ticks, [](const Tick& t) { return t.phase == Pass::backward; });
    return ticks;
  }
  for (int m = 0; m < pipeline.microbatches; ++m) ticks.push_back({Pass::forward, {m}});
  return ticks;
}

PlanIndex::PlanIndex(const StepShape& step_shape, std::span<const TickPlans> plans)
    : halves_(step_shape.halves) {
  const std::size_t ticks = step_shape.ticks().size();
  if (plans.empty() || ticks == 0) return;
  classes_ = static_cast<int>(plans.size() / ticks) / halves_;
  if (classes_ == 1) return;
  for (int c = 0; c < classes_; ++c) {
    for (const int layer : plans[at(c * halves_)].forward.workload.layers) {
      const auto place = static_cast<std::size_t>(layer);
      if (class_of_.size() <= place) class_of_.resize(place + 1, 0);
      class_of_[place] = c;
    }
  }
}

int PlanIndex::plan(int tick, int half, int layer) const {
  const int c = classes_ == 1 || layer < 0 ? 0 : class_of_[at(layer)];
  return (tick * classes_ + c) * halves_ + half;
}

std::size_t StepShape::layer_passes() const {
  const int stages = layout.pools_stages() ? 1 : layout.pipeline();
  return ticks().size() * static_cast<std::size_t>(stages * most_layers * kPasses);
}

std::size_t StepShape::number_of(const LayerPass& pass, Rank rank) const {
  const int stages = layout.pools_stages() ? 1 : layout.pipeline();
  const int stage = stages == 1 ? 0 : layout.coordinates(rank).pipeline;
  const int layer = (pass.tick * stages + stage) * most_layers + pass.layer;
  return static_cast<std::size_t>(layer * kPasses + static_cast<int>(pass.phase));
}

int StepShape::servers_of_pass() const {
  int servers = 0;
  for (Rank rank = 0; rank < layout.ranks(); ++rank) servers += layout.serves(rank) ? 1 : 0;
  return servers / (layout.pools_stages() ? 1 : layout.pipeline());
}

void add_traffic(TickPlans& plans) {
  plans.forward_traffic = Traffic(plans.forward, Pass::forward);
  plans.backward_traffic = Traffic(plans.backward, Pass::backward);
  plans.forward_index = Traffic::of_index(plans.forward, Pass::forward);
  plans.backward_index = Traffic::of_index(plans.backward, Pass::backward);
}

Phase phase_of(Pass pass) {
  return pass == Pass::forward ? Phase::forward : Phase::backward;
}

Phase phase_of(const Instruction& instruction) {
  if (describe(instruction.operation).granularity == Granularity::step) return Phase::optimizer;
  return instruction.recompute ? Phase::recompute : phase_of(instruction.pass);
}

EventContext context_of(const Instruction& instruction, int halves) {
  EventContext context;
  context.phase = phase_of(instruction);
  context.microbatch = instruction.microbatch;
  context.layer = instruction.layer;
  context.tick = instruction.tick;
  context.stage = instruction.stage;
  if (halves > 1 && is_of_half(instruction.operation)) context.half = instruction.half;
  return context;
}

int buffers_of_stage(const StepShape& step_shape, int stage) {
  BufferPool buffers;
  const Pass last = step_shape.evaluates ? Pass::forward : Pass::backward;
  for (const MicrobatchPass& unit : microbatch_passes(step_shape, true, stage)) {
    if (unit.microbatch < 0) continue;
    if (unit.pass == Pass::forward) buffers.take(unit.microbatch, unit.chunk);
    if (unit.pass == last) buffers.release(unit.microbatch, unit.chunk);
  }
  return std::max(1, buffers.count());
}

Program make_program(const StepShape& step_shape, Rank rank,
                     std::span<const TickPlans> tick_plans) {
  return Builder(step_shape, rank, tick_plans).build();
}

std::string to_string(const Instruction& instruction) {
  std::string text;
  if (instruction.tick >= 0) text += fmt::format("tick {} ", instruction.tick);
  if (instruction.layer >= 0) text += fmt::format("layer {} ", instruction.layer);
  text += fmt::format("{} {}", instruction.pass == Pass::forward ? "forward" : "backward",
                      name(instruction.operation));
  if (instruction.recompute) text += " recomputed";
  if (instruction.stage >= 0) text += fmt::format(" stage {}", instruction.stage);
  if (instruction.peer >= 0) text += fmt::format(" with rank {}", instruction.peer);
  return text;
}

}  // namespace cadenza::program
