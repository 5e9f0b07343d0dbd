// SPDX-License-Identifier: Apache-2.0
// The operations of a program, what events they leave, and the one table that says what they are:
// executor, simulator and both recordings read it. A new operation is an enumerator and a row of
// the table, here, and a handler of its actor, without which the program does not compile.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "cadenza/base/at.hpp"
#include "cadenza/base/collective.hpp"
#include "cadenza/base/event_context.hpp"
#include "cadenza/config/machine.hpp"

namespace cadenza::program {

enum class Operation : std::uint8_t {
  load,               ///< tokens, positions and targets of a microbatch, into an activation buffer
  embed,              ///< tokens -> first residual stream
  post_receive,       ///< starts a receive that follows: in an order that all stages have in common
  receive,            ///< residual stream (backward: its gradient) from a neighbouring stage
  send,               ///< ... to the next one; does not wait
  attention_inputs,   ///< norm, Q K V projections, rotation of K (backward: their gradients)
  begin_attention,    ///< backward: delta of this rank's own rows
  post_index,         ///< packs and starts this rank's messages of an index round (`stage`)
  wait_index,         ///< completes them and takes what arrived
  estimate,           ///< what an index round makes of it: plan::IndexRound
  post,               ///< packs and starts this rank's messages of inputs of a stage
  wait,               ///< completes them and places what arrived
  attend,             ///< this rank's tasks of a stage
  post_results,       ///< packs and starts this rank's messages of results of a stage
  wait_results,       ///< completes them, merges or adds what arrived
  attention_outputs,  ///< output projection, feed-forward (backward: their gradients)
  loss,               ///< final norm, logits, loss and its gradient
  embed_gradient,
  reduce_layer,       ///< starts the sum of a layer's gradients over ranks that hold the same part
  reduce_gradients,   ///< sums the others and completes all sums
  gradient_norm,      ///< of all ranks' gradients
  optimize,           ///< clipping and parameter update
  gather_parameters,  ///< optimizer shards: updated parameters from the ranks that own them
};
inline constexpr int kOperations = static_cast<int>(Operation::gather_parameters) + 1;

/// What else leaves events: parts of operations, and what a rank does around its program.
enum class OtherEvent : std::uint8_t {
  pack,                       ///< rows into attention's messages
  unpack,                     ///< ... out of them, merged or added at home
  pack_stream,                ///< a residual stream into its message
  unpack_stream,              ///< ... out of it
  zero_gradients,             ///< before the first microbatch
  index_message,              ///< under way
  attention_inputs_message,   ///< under way
  attention_results_message,  ///< under way
  reduce_gradients_message,   ///< the sum of a layer's gradients, under way
  wait_for_sends,             ///< whose memory is needed again
  wait_for_stage,             ///< for a residual stream
  wait_for_ranks,             ///< for the last rank of the collective that follows
  wait_for_plan,              ///< that another thread makes
  agree_on_plan,
  agree_on_loss,
  agree_on_norm,
  tensor_all_gather,  ///< of a tensor group, in the middle of an operation
  tensor_reduce_scatter,
  tensor_all_reduce,
  bind_plan,  ///< to rows and buffers
  progress,   ///< messages move on
  start_planner,
  sample_memory,
  measure_clock,
  write_step,  ///< to the trace
  save_checkpoint,
};
inline constexpr int kOtherEvents = static_cast<int>(OtherEvent::save_checkpoint) + 1;
inline constexpr int kEventKinds = kOperations + kOtherEvents;

/// One of either: what an event is called.
class EventKind {
 public:
  constexpr EventKind(Operation operation) : number_(static_cast<std::uint16_t>(operation)) {}
  constexpr EventKind(OtherEvent event)
      : number_(static_cast<std::uint16_t>(kOperations + static_cast<int>(event))) {}
  /// @param number  as number() gives it
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

/// What an operation is run for.
enum class Granularity : std::uint8_t {
  step,        ///< the step, when its passes are over: the update
  layer,       ///< a layer, when its last microbatch is over
  microbatch,  ///< a microbatch
  rows,        ///< some rows of a microbatch: it does nothing without any
  exchange,    ///< the attention of some rows, which dedicated servers run too
};

/// The part of a rank's executor that runs an operation.
enum class Actor : std::uint8_t {
  trainer,   ///< the model, pipeline messages, gradients and the update
  exchange,  ///< messages and tasks of attention
  index,     ///< the index of sparse attention
};

/// The ranks that meet in an operation.
enum class Group : std::uint8_t {
  none,
  tensor,    ///< that share its matrices, where the model is cut
  replicas,  ///< that hold the same parameters
  trainers,  ///< all of them
};

using PassRatesOf = config::PassRates config::ElementWise::*;
using RateOf = double config::ElementWise::*;

struct OperationInfo {
  Operation operation = Operation::load;
  std::string_view name;
  Actor actor = Actor::trainer;
  Category category = Category::compute_other;  ///< of events that bear its name
  Granularity granularity = Granularity::rows;
  Group group = Group::none;
  // The events of what it does beside computing; absent where it does no such thing.
  std::optional<EventKind> pack = {};
  std::optional<EventKind> wait = {};
  std::optional<EventKind> unpack = {};
  std::optional<EventKind> message = {};     ///< to or from one rank
  std::optional<EventKind> collective = {};  ///< that it waits for
  /// Whether its events leave none of its time out.
  bool whole = true;
  /// Whether it computes by the model's shape: products and bytes (OperationShapes::work).
  bool has_shape = false;
  /// The machine's rates for its element-wise part, by pass or for both; null: the common rate.
  PassRatesOf pass_rates = nullptr;
  RateOf rate = nullptr;
};

/// By operation.
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

/// By event.
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
    {OtherEvent::reduce_gradients_message, "reduce_gradients_message", Category::collective},
    {OtherEvent::wait_for_sends, "wait_for_sends", Category::wait},
    {OtherEvent::wait_for_stage, "wait_for_stage", Category::wait},
    {OtherEvent::wait_for_ranks, "wait_for_ranks", Category::wait},
    {OtherEvent::wait_for_plan, "wait_for_plan", Category::plan},
    {OtherEvent::agree_on_plan, "agree_on_plan", Category::collective, true},
    {OtherEvent::agree_on_loss, "agree_on_loss", Category::collective, true},
    {OtherEvent::agree_on_norm, "agree_on_norm", Category::collective, true},
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
}};

/// A row is found by its number: none is missing, none in another's place.
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

/// Null for operations.
constexpr const OtherEventInfo* describe_other(EventKind kind) {
  return kind.number() < kOperations ? nullptr : &kOtherEventTable[kind.number() - kOperations];
}

constexpr std::string_view name(EventKind kind) {
  const OtherEventInfo* other = describe_other(kind);
  return other != nullptr ? other->name : kOperationTable[kind.number()].name;
}

/// The category of a kind's events, but for operations of which the host lane records the whole:
/// that is `host`.
constexpr Category category(EventKind kind) {
  const OtherEventInfo* other = describe_other(kind);
  return other != nullptr ? other->category : kOperationTable[kind.number()].category;
}

/// Whether all of a tensor group are in the collective: it is one, whoever records it.
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

/// begin_attention, attend, posts and waits: what an exchange runs, on dedicated servers too.
constexpr bool is_attention(Operation operation) {
  return describe(operation).granularity == Granularity::exchange;
}
/// Layers, embedding and loss: computes a range of rows, and does nothing without any.
constexpr bool is_of_rows(Operation operation) {
  return describe(operation).granularity == Granularity::rows;
}
/// Whether it runs on each half of a microbatch in ping-pong; the others run on all of it.
constexpr bool is_of_half(Operation operation) {
  return is_attention(operation) || is_of_rows(operation);
}

/// Makes a table of handlers by operation, complete at compile time: it does not compile where an
/// operation that `is_handled` has no handler, or another one has.
template <typename Handler, typename Predicate, std::size_t N>
consteval std::array<Handler, kOperations> handlers_of(
    Predicate is_handled, const std::pair<Operation, Handler> (&rows)[N]) {
  std::array<Handler, kOperations> table{};
  for (const auto& [operation, handler] : rows) table[at(operation)] = handler;
  for (const OperationInfo& info : kOperationTable) {
    const bool has_handler = table[at(info.operation)] != nullptr;
    if (has_handler != is_handled(info))
      throw "an operation lacks a handler, or has one of another";
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
