// SPDX-License-Identifier: Apache-2.0
// The operations of a program, what events they leave, and the one table that says what they are:
// executor, simulator and both recordings read it. A new operation is an enumerator here, a row in
// src/program/operation.cpp, and a case wherever the compiler then misses one.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "cadenza/base/collective.hpp"
#include "cadenza/base/event_context.hpp"

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

std::string_view name(EventKind kind);
/// Of its events, but for operations of which the host lane records the whole: that is `host`.
Category category(EventKind kind);
/// Whether all of a tensor group are in the collective: it is one, whoever records it.
bool spans_tensor_group(EventKind kind);
/// Of a collective of a tensor group.
EventKind tensor_event(Collective collective);

/// What an operation is run for.
enum class Granularity : std::uint8_t {
  step,        ///< the step, when its passes are over: the update
  layer,       ///< a layer, when its last microbatch is over
  microbatch,  ///< a microbatch
  rows,        ///< some rows of a microbatch: it does nothing without any
  exchange,    ///< the attention of some rows, which dedicated servers run too
};

/// The ranks that meet in an operation.
enum class Group : std::uint8_t {
  none,
  tensor,    ///< that share its matrices, where the model is cut
  replicas,  ///< that hold the same parameters
  trainers,  ///< all of them
};

struct OperationInfo {
  Operation operation = Operation::load;
  std::string_view name;
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
};

const OperationInfo& describe(Operation operation);

/// begin_attention, attend, posts and waits: what an exchange runs, on dedicated servers too.
inline bool is_attention(Operation operation) {
  return describe(operation).granularity == Granularity::exchange;
}
/// Layers, embedding and loss: computes a range of rows, and does nothing without any.
inline bool is_of_rows(Operation operation) {
  return describe(operation).granularity == Granularity::rows;
}
/// Whether it runs on each half of a microbatch in ping-pong; the others run on all of it.
inline bool is_of_half(Operation operation) {
  return is_attention(operation) || is_of_rows(operation);
}

}  // namespace cadenza::program
