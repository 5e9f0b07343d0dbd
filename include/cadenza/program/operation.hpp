// SPDX-License-Identifier: Apache-2.0
// The operations of a program, the events that they leave, and the one table of their properties,
// which executor, simulator and both recordings read. A new operation needs an enumerator and a row
// of the table here, a handler in its actor (checked at compile time), a place in a program
// (src/program/program.cpp or attention_operations.cpp) and a case in src/simulate/clock.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "cadenza/base/at.hpp"
#include "cadenza/base/event_context.hpp"
#include "cadenza/config/machine.hpp"

namespace cadenza::program {

enum class Operation : std::uint8_t {
  load,               ///< tokens, positions and targets of a microbatch, into an activation buffer
  embed,              ///< tokens -> first residual stream
  post_receive,       ///< starts a later receive, in an order that is common to all stages
  receive,            ///< residual stream (backward: its gradient) from a neighbouring stage
  send,               ///< residual stream (backward: its gradient) to the next stage; does not wait
  attention_inputs,   ///< norm, Q K V projections, rotation of K (backward: their gradients)
  begin_attention,    ///< backward: delta of this rank's own rows
  post_index,         ///< packs and starts this rank's messages of an index round (`stage`)
  wait_index,         ///< completes the messages of an index round and takes what arrived
  estimate,           ///< computes with the messages of an index round: plan::IndexRound
  post,               ///< packs and starts this rank's messages of inputs of a stage
  wait,               ///< completes messages of inputs and places what arrived
  attend,             ///< this rank's tasks of a stage
  post_results,       ///< packs and starts this rank's messages of results of a stage
  wait_results,       ///< completes messages of results, merges or adds what arrived
  attention_outputs,  ///< output projection, feed-forward (backward: their gradients)
  offload,            ///< starts to copy what a layer keeps into host memory
  fetch,              ///< starts to copy it back
  wait_for_copy,      ///< until no copy uses the memory of a layer's activations
  loss,               ///< final norm, logits, loss and its gradient
  embed_gradient,
  gather_layer,       ///< shards: starts to gather a layer's parameters (-1: all others)
  wait_layer,         ///< waits for the parameters of a layer
  reduce_layer,       ///< starts the sum of a layer's gradients over ranks that hold the same part
  reduce_gradients,   ///< sums the other gradients and completes all sums
  gradient_norm,      ///< norm of all ranks' gradients
  optimize,           ///< clipping and parameter update
  gather_parameters,  ///< optimizer shards: updated parameters from the ranks that own them
};
inline constexpr int kOperations = static_cast<int>(Operation::gather_parameters) + 1;

/// Other events: parts of operations, and work of a rank around its program.
enum class OtherEvent : std::uint8_t {
  pack,                       ///< copies rows into attention's messages
  unpack,                     ///< takes rows out of attention's messages; merges or adds at home
  pack_stream,                ///< copies a residual stream into its message
  unpack_stream,              ///< copies a residual stream out of its message
  zero_gradients,             ///< before the first microbatch
  index_message,              ///< message under way
  attention_inputs_message,   ///< message under way
  attention_results_message,  ///< message under way
  gather_layer_message,       ///< gathering of a layer's parameters under way
  reduce_gradients_message,   ///< sum of a layer's gradients under way
  wait_for_sends,             ///< waits for sends whose memory is needed again
  wait_for_stage,             ///< waits for a residual stream
  wait_for_ranks,             ///< waits for the last rank of the collective that follows
  wait_for_plan,              ///< waits for the plan, which another thread makes
  agree_on_plan,
  agree_on_loss,
  agree_on_norm,
  share_patterns,     ///< of sparse attention, with later steps
  sample_recall,      ///< measures what sparse attention keeps
  tensor_all_gather,  ///< collective of a tensor group within an operation, as the next two
  tensor_reduce_scatter,
  tensor_all_reduce,
  bind_plan,  ///< binds the plan to rows and buffers
  progress,   ///< lets messages advance
  start_planner,
  sample_memory,
  measure_clock,
  write_step,  ///< writes the step to the trace
  save_checkpoint,
  validate,  ///< forward passes over data.validation, whose events are not recorded
};
inline constexpr int kOtherEvents = static_cast<int>(OtherEvent::validate) + 1;
inline constexpr int kEventKinds = kOperations + kOtherEvents;

/// The kind of an event: an Operation or an OtherEvent.
class EventKind {
 public:
  constexpr EventKind(Operation operation) : number_(static_cast<std::uint16_t>(operation)) {}
  constexpr EventKind(OtherEvent event)
      : number_(static_cast<std::uint16_t>(kOperations + static_cast<int>(event))) {}
  /// The kind with this number().
  static constexpr EventKind of(std::uint16_t number) {
    return number < kOperations ? EventKind(static_cast<Operation>(number))
                                : EventKind(static_cast<OtherEvent>(number - kOperations));
  }
  /// From 0 to kEventKinds - 1, operations first.
  constexpr std::uint16_t number() const { return number_; }
  friend constexpr bool operator==(EventKind, EventKind) = default;

 private:
  std::uint16_t number_;
};

/// The unit for which an operation runs once.
enum class Granularity : std::uint8_t {
  step,        ///< the step, after all passes: the update
  layer,       ///< a layer: its sum after its last microbatch, or in every pass with its parameters
  microbatch,  ///< a microbatch
  rows,        ///< some rows of a microbatch; no rows, no work
  exchange,    ///< the attention of some rows; dedicated servers run it too
};

/// The part of a rank's executor that runs an operation.
enum class Actor : std::uint8_t {
  trainer,   ///< the model, pipeline messages, gradients and the update
  exchange,  ///< messages and tasks of attention
  index,     ///< the index of sparse attention
  nobody,    ///< the simulator alone runs it
};

/// The ranks that meet in an operation.
enum class Group : std::uint8_t {
  none,
  tensor,    ///< ranks that share the model's matrices
  replicas,  ///< ranks that hold the same parameters
  trainers,  ///< all trainers
};

using PassRatesOf = config::PassRates config::ElementWise::*;
using RateOf = double config::ElementWise::*;

struct OperationInfo {
  Operation operation = Operation::load;
  std::string_view name;
  Actor actor = Actor::trainer;
  Category category = Category::compute_other;  ///< category of events with its name
  Granularity granularity = Granularity::rows;
  Group group = Group::none;
  // Events of its parts other than computing; absent where it has no such part.
  std::optional<EventKind> pack = {};
  std::optional<EventKind> wait = {};
  std::optional<EventKind> unpack = {};
  std::optional<EventKind> message = {};     ///< message to or from one rank
  std::optional<EventKind> collective = {};  ///< collective that it waits for
  /// Whether its events cover all of its time.
  bool whole = true;
  /// Whether the model's shape gives its products and bytes (OperationShapes::work).
  bool has_shape = false;
  /// The machine's rates for its element-wise part, by pass or for both; null: the common rate.
  PassRatesOf pass_rates = nullptr;
  RateOf rate = nullptr;
};

/// Properties by operation.
inline constexpr std::array<OperationInfo, kOperations> kOperationTable = {{
    {.operation = Operation::load,
     .name = "load",
     .category = Category::data,
     .granularity = Granularity::microbatch,
     .has_shape = true},
    {.operation = Operation::embed,
     .name = "embed",
     .category = Category::compute_other,
     .granularity = Granularity::rows,
     .group = Group::tensor,
     .has_shape = true,
     .pass_rates = &config::ElementWise::embedding},
    {.operation = Operation::post_receive,
     .name = "post_receive",
     .category = Category::host,
     .granularity = Granularity::microbatch,
     .whole = false},
    {.operation = Operation::receive,
     .name = "receive",
     .category = Category::p2p_receive,
     .granularity = Granularity::microbatch,
     .wait = OtherEvent::wait_for_stage,
     .unpack = OtherEvent::unpack_stream,
     .message = Operation::receive,
     .whole = false},
    {.operation = Operation::send,
     .name = "send",
     .category = Category::p2p_send,
     .granularity = Granularity::microbatch,
     .pack = OtherEvent::pack_stream,
     .message = Operation::send,
     .whole = false},
    {.operation = Operation::attention_inputs,
     .name = "attention_inputs",
     .category = Category::compute_dense,
     .granularity = Granularity::rows,
     .group = Group::tensor,
     .has_shape = true,
     .pass_rates = &config::ElementWise::attention_inputs},
    {.operation = Operation::begin_attention,
     .name = "begin_attention",
     .actor = Actor::exchange,
     .category = Category::compute_other,
     .granularity = Granularity::exchange,
     .has_shape = true,
     .rate = &config::ElementWise::attention_delta},
    {.operation = Operation::post_index,
     .name = "post_index",
     .actor = Actor::index,
     .category = Category::host,
     .granularity = Granularity::exchange,
     .pack = OtherEvent::pack,
     .message = OtherEvent::index_message,
     .whole = false},
    {.operation = Operation::wait_index,
     .name = "wait_index",
     .actor = Actor::index,
     .category = Category::wait,
     .granularity = Granularity::exchange,
     .wait = Operation::wait_index,
     .unpack = OtherEvent::unpack,
     .message = OtherEvent::index_message},
    {.operation = Operation::estimate,
     .name = "estimate",
     .actor = Actor::index,
     .category = Category::compute_attention,
     .granularity = Granularity::exchange},
    {.operation = Operation::post,
     .name = "post",
     .actor = Actor::exchange,
     .category = Category::host,
     .granularity = Granularity::exchange,
     .pack = OtherEvent::pack,
     .message = OtherEvent::attention_inputs_message,
     .whole = false},
    {.operation = Operation::wait,
     .name = "wait",
     .actor = Actor::exchange,
     .category = Category::wait,
     .granularity = Granularity::exchange,
     .wait = Operation::wait,
     .unpack = OtherEvent::unpack,
     .message = OtherEvent::attention_inputs_message},
    {.operation = Operation::attend,
     .name = "attend",
     .actor = Actor::exchange,
     .category = Category::compute_attention,
     .granularity = Granularity::exchange},
    {.operation = Operation::post_results,
     .name = "post_results",
     .actor = Actor::exchange,
     .category = Category::host,
     .granularity = Granularity::exchange,
     .pack = OtherEvent::pack,
     .message = OtherEvent::attention_results_message,
     .whole = false},
    {.operation = Operation::wait_results,
     .name = "wait_results",
     .actor = Actor::exchange,
     .category = Category::wait,
     .granularity = Granularity::exchange,
     .wait = Operation::wait,
     .unpack = OtherEvent::unpack,
     .message = OtherEvent::attention_results_message},
    {.operation = Operation::attention_outputs,
     .name = "attention_outputs",
     .category = Category::compute_dense,
     .granularity = Granularity::rows,
     .group = Group::tensor,
     .has_shape = true,
     .pass_rates = &config::ElementWise::attention_outputs},
    {.operation = Operation::offload,
     .name = "offload",
     .category = Category::host,
     .granularity = Granularity::microbatch},
    {.operation = Operation::fetch,
     .name = "fetch",
     .category = Category::host,
     .granularity = Granularity::microbatch},
    {.operation = Operation::wait_for_copy,
     .name = "wait_for_copy",
     .category = Category::wait,
     .granularity = Granularity::microbatch},
    {.operation = Operation::loss,
     .name = "loss",
     .category = Category::compute_dense,
     .granularity = Granularity::rows,
     .group = Group::tensor,
     .has_shape = true,
     .rate = &config::ElementWise::loss},
    {.operation = Operation::embed_gradient,
     .name = "embed_gradient",
     .category = Category::compute_other,
     .granularity = Granularity::rows,
     .group = Group::tensor,
     .has_shape = true,
     .pass_rates = &config::ElementWise::embedding},
    {.operation = Operation::gather_layer,
     .name = "gather_layer",
     .actor = Actor::nobody,
     .category = Category::host,
     .granularity = Granularity::layer,
     .group = Group::replicas,
     .whole = false},
    {.operation = Operation::wait_layer,
     .name = "wait_layer",
     .actor = Actor::nobody,
     .category = Category::wait,
     .granularity = Granularity::layer,
     .group = Group::replicas},
    {.operation = Operation::reduce_layer,
     .name = "reduce_layer",
     .category = Category::host,
     .granularity = Granularity::layer,
     .group = Group::replicas,
     .whole = false},
    {.operation = Operation::reduce_gradients,
     .name = "reduce_gradients",
     .category = Category::collective,
     .granularity = Granularity::step,
     .group = Group::replicas,
     .collective = Operation::reduce_gradients,
     .whole = false},
    {.operation = Operation::gradient_norm,
     .name = "gradient_norm",
     .category = Category::optimizer,
     .granularity = Granularity::step,
     .group = Group::trainers,
     .collective = OtherEvent::agree_on_norm,
     .whole = false,
     .has_shape = true},
    {.operation = Operation::optimize,
     .name = "optimize",
     .category = Category::optimizer,
     .granularity = Granularity::step,
     .has_shape = true,
     .rate = &config::ElementWise::optimizer},
    {.operation = Operation::gather_parameters,
     .name = "gather_parameters",
     .category = Category::collective,
     .granularity = Granularity::step,
     .group = Group::replicas,
     .collective = Operation::gather_parameters},
}};

struct OtherEventInfo {
  OtherEvent event;
  std::string_view name;
  Category category;
  bool spans_tensor_group = false;
};

/// Properties by event.
inline constexpr std::array<OtherEventInfo, kOtherEvents> kOtherEventTable = {{
    {OtherEvent::pack, "pack", Category::compute_other},
    {OtherEvent::unpack, "unpack", Category::compute_other},
    {OtherEvent::pack_stream, "pack_stream", Category::compute_other},
    {OtherEvent::unpack_stream, "unpack_stream", Category::compute_other},
    {OtherEvent::zero_gradients, "zero_gradients", Category::compute_other},
    {OtherEvent::index_message, "index_message", Category::attention_dispatch},
    {OtherEvent::attention_inputs_message, "attention_inputs_message",
     Category::attention_dispatch},
    {OtherEvent::attention_results_message, "attention_results_message",
     Category::attention_return},
    {OtherEvent::gather_layer_message, "gather_layer_message", Category::collective},
    {OtherEvent::reduce_gradients_message, "reduce_gradients_message", Category::collective},
    {OtherEvent::wait_for_sends, "wait_for_sends", Category::wait},
    {OtherEvent::wait_for_stage, "wait_for_stage", Category::wait},
    {OtherEvent::wait_for_ranks, "wait_for_ranks", Category::wait},
    {OtherEvent::wait_for_plan, "wait_for_plan", Category::plan},
    {OtherEvent::agree_on_plan, "agree_on_plan", Category::collective, true},
    {OtherEvent::agree_on_loss, "agree_on_loss", Category::collective, true},
    {OtherEvent::agree_on_norm, "agree_on_norm", Category::collective, true},
    {OtherEvent::share_patterns, "share_patterns", Category::collective, true},
    {OtherEvent::sample_recall, "sample_recall", Category::collective, true},
    {OtherEvent::tensor_all_gather, "tensor_all_gather", Category::collective, true},
    {OtherEvent::tensor_reduce_scatter, "tensor_reduce_scatter", Category::collective, true},
    {OtherEvent::tensor_all_reduce, "tensor_all_reduce", Category::collective, true},
    {OtherEvent::bind_plan, "bind_plan", Category::host},
    {OtherEvent::progress, "progress", Category::host},
    {OtherEvent::start_planner, "start_planner", Category::host},
    {OtherEvent::sample_memory, "sample_memory", Category::trace_overhead},
    {OtherEvent::measure_clock, "measure_clock", Category::host},
    {OtherEvent::write_step, "write_step", Category::trace_overhead},
    {OtherEvent::save_checkpoint, "save_checkpoint", Category::checkpoint},
    {OtherEvent::validate, "validate", Category::host},
}};

/// Rows are found by number: none is missing, none is out of place.
static_assert([] {
  for (int number = 0; number < kOperations; ++number) {
    if (kOperationTable[number].operation != static_cast<Operation>(number)) return false;
  }
  for (int number = 0; number < kOtherEvents; ++number) {
    if (kOtherEventTable[number].event != static_cast<OtherEvent>(number)) return false;
  }
  return true;
}());

constexpr const OperationInfo& describe(Operation operation) {
  return kOperationTable[at(operation)];
}

/// The properties of an OtherEvent; null for operations.
constexpr const OtherEventInfo* describe_other(EventKind kind) {
  return kind.number() < kOperations ? nullptr : &kOtherEventTable[kind.number() - kOperations];
}

constexpr std::string_view name(EventKind kind) {
  const OtherEventInfo* other = describe_other(kind);
  return other != nullptr ? other->name : kOperationTable[kind.number()].name;
}

/// The category of a kind's events. (Where the host lane records a whole operation, it is `host`.)
constexpr Category category(EventKind kind) {
  const OtherEventInfo* other = describe_other(kind);
  return other != nullptr ? other->category : kOperationTable[kind.number()].category;
}

/// Whether all ranks of a tensor group take part in the same collective.
constexpr bool spans_tensor_group(EventKind kind) {
  const OtherEventInfo* other = describe_other(kind);
  return other != nullptr && other->spans_tensor_group;
}

/// The event of a collective of a tensor group.
constexpr EventKind tensor_event(Collective collective) {
  constexpr std::array kEvents = {OtherEvent::tensor_all_gather, OtherEvent::tensor_reduce_scatter,
                                  OtherEvent::tensor_all_reduce};
  return kEvents[at(collective)];
}

/// Whether it is part of an exchange, which dedicated servers run too: begin_attention, estimate,
/// attend, posts and waits.
constexpr bool is_attention(Operation operation) {
  return describe(operation).granularity == Granularity::exchange;
}
/// Whether it computes a range of rows (layers, embedding and loss) and does nothing without rows.
constexpr bool is_of_rows(Operation operation) {
  return describe(operation).granularity == Granularity::rows;
}
/// Whether it runs on each half of a microbatch in ping-pong; others run on the whole.
constexpr bool is_of_half(Operation operation) {
  return is_attention(operation) || is_of_rows(operation);
}

/// Makes a table of handlers by operation at compile time. It compiles only if exactly the
/// operations for which `is_handled` is true have a handler.
template <typename Handler, typename Predicate, std::size_t N>
consteval std::array<Handler, kOperations> handlers_of(
    Predicate is_handled, const std::pair<Operation, Handler> (&rows)[N]) {
  std::array<Handler, kOperations> table{};
  std::array<bool, kOperations> given{};
  for (const auto& [operation, handler] : rows) {
    table[at(operation)] = handler;
    given[at(operation)] = true;
  }
  for (const OperationInfo& info : kOperationTable) {
    if (given[at(info.operation)] != is_handled(info)) {
      throw "an operation lacks a handler, or has one of another";
    }
  }
  return table;
}
template <typename Handler, std::size_t N>
consteval std::array<Handler, kOperations> handlers_of(
    Actor actor, const std::pair<Operation, Handler> (&rows)[N]) {
  return handlers_of<Handler>([actor](const OperationInfo& info) { return info.actor == actor; },
                              rows);
}

}  // namespace cadenza::program
