// SPDX-License-Identifier: Apache-2.0
#include "cadenza/program/operation.hpp"

#include <algorithm>
#include <array>

namespace cadenza::program {
namespace {

constexpr std::array<OperationInfo, kOperations> kTable = {{
    {.operation = Operation::load,
     .name = "load",
     .category = Category::data,
     .granularity = Granularity::microbatch},
    {.operation = Operation::embed,
     .name = "embed",
     .category = Category::compute_other,
     .granularity = Granularity::rows,
     .group = Group::tensor},
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
     .group = Group::tensor},
    {.operation = Operation::begin_attention,
     .name = "begin_attention",
     .category = Category::compute_other,
     .granularity = Granularity::exchange},
    {.operation = Operation::post_index,
     .name = "post_index",
     .category = Category::host,
     .granularity = Granularity::exchange,
     .pack = OtherEvent::pack,
     .message = OtherEvent::index_message,
     .whole = false},
    {.operation = Operation::wait_index,
     .name = "wait_index",
     .category = Category::wait,
     .granularity = Granularity::exchange,
     .wait = Operation::wait_index,
     .unpack = OtherEvent::unpack,
     .message = OtherEvent::index_message},
    {.operation = Operation::estimate,
     .name = "estimate",
     .category = Category::compute_attention,
     .granularity = Granularity::exchange},
    {.operation = Operation::post,
     .name = "post",
     .category = Category::host,
     .granularity = Granularity::exchange,
     .pack = OtherEvent::pack,
     .message = OtherEvent::attention_inputs_message,
     .whole = false},
    {.operation = Operation::wait,
     .name = "wait",
     .category = Category::wait,
     .granularity = Granularity::exchange,
     .wait = Operation::wait,
     .unpack = OtherEvent::unpack,
     .message = OtherEvent::attention_inputs_message},
    {.operation = Operation::attend,
     .name = "attend",
     .category = Category::compute_attention,
     .granularity = Granularity::exchange},
    {.operation = Operation::post_results,
     .name = "post_results",
     .category = Category::host,
     .granularity = Granularity::exchange,
     .pack = OtherEvent::pack,
     .message = OtherEvent::attention_results_message,
     .whole = false},
    {.operation = Operation::wait_results,
     .name = "wait_results",
     .category = Category::wait,
     .granularity = Granularity::exchange,
     .wait = Operation::wait,
     .unpack = OtherEvent::unpack,
     .message = OtherEvent::attention_results_message},
    {.operation = Operation::attention_outputs,
     .name = "attention_outputs",
     .category = Category::compute_dense,
     .granularity = Granularity::rows,
     .group = Group::tensor},
    {.operation = Operation::loss,
     .name = "loss",
     .category = Category::compute_dense,
     .granularity = Granularity::rows,
     .group = Group::tensor},
    {.operation = Operation::embed_gradient,
     .name = "embed_gradient",
     .category = Category::compute_other,
     .granularity = Granularity::rows,
     .group = Group::tensor},
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
     .whole = false},
    {.operation = Operation::optimize,
     .name = "optimize",
     .category = Category::optimizer,
     .granularity = Granularity::step},
    {.operation = Operation::gather_parameters,
     .name = "gather_parameters",
     .category = Category::collective,
     .granularity = Granularity::step,
     .group = Group::replicas,
     .collective = Operation::gather_parameters},
}};

struct EventInfo {
  OtherEvent event;
  std::string_view name;
  Category category;
  bool spans_tensor_group = false;
};

constexpr std::array<EventInfo, kOtherEvents> kEvents = {{
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

constexpr std::size_t index(EventKind kind) {
  return kind.number();
}

/// A row is found by its number: none is missing, none in another's place.
constexpr bool in_order() {
  for (const OperationInfo& info : kTable) {
    if (index(info.operation) != static_cast<std::size_t>(&info - kTable.data())) return false;
  }
  for (const EventInfo& info : kEvents) {
    const auto row = static_cast<std::size_t>(&info - kEvents.data());
    if (index(info.event) != kOperations + row) return false;
  }
  return true;
}
static_assert(in_order());

const EventInfo* other(EventKind kind) {
  return index(kind) < kOperations ? nullptr : &kEvents[index(kind) - kOperations];
}

}  // namespace

const OperationInfo& describe(Operation operation) {
  return kTable[static_cast<std::size_t>(operation)];
}

std::string_view name(EventKind kind) {
  const EventInfo* event = other(kind);
  return event != nullptr ? event->name : kTable[index(kind)].name;
}

Category category(EventKind kind) {
  const EventInfo* event = other(kind);
  return event != nullptr ? event->category : kTable[index(kind)].category;
}

bool spans_tensor_group(EventKind kind) {
  const EventInfo* event = other(kind);
  return event != nullptr && event->spans_tensor_group;
}

EventKind tensor_event(Collective collective) {
  switch (collective) {
    case Collective::all_gather:
      return OtherEvent::tensor_all_gather;
    case Collective::reduce_scatter:
      return OtherEvent::tensor_reduce_scatter;
    case Collective::all_reduce:
      break;
  }
  return OtherEvent::tensor_all_reduce;
}

}  // namespace cadenza::program
