// SPDX-License-Identifier: Apache-2.0
#include "cadenza/simulate/recording.hpp"

#include <cmath>

#include "cadenza/base/hash.hpp"
#include "operation_category.hpp"

namespace cadenza::simulate {
namespace {

using program::Operation;
using program::Step;
using trace::Category;
using trace::Event;
using trace::Lane;
using trace::Phase;

/// Names of what is no operation of a program; an operation's name has its number.
enum Name : std::uint16_t {
  pack = program::kOperations,
  unpack,
  inputs_message,
  results_message,
  wait_for_stage,
  wait_for_ranks,
  gradients_message,
  agree_on_plan,
  agree_on_loss,
  agree_on_norm,
  tensor_all_gather,
  tensor_reduce_scatter,
  tensor_all_reduce,
  pack_stream,
  unpack_stream,
  wait_for_sends,
  zero_gradients,
};

/// What an event is called.
struct Kind {
  Category category = Category::compute_other;
  std::uint16_t name = 0;
};

std::uint16_t name_of(Operation operation) {
  return static_cast<std::uint16_t>(operation);
}

/// Of a tensor group.
std::uint16_t name_of(Collective collective) {
  switch (collective) {
    case Collective::all_gather:
      return tensor_all_gather;
    case Collective::reduce_scatter:
      return tensor_reduce_scatter;
    case Collective::all_reduce:
      break;
  }
  return tensor_all_reduce;
}

Kind computation(Operation operation) {
  return {category_of(operation), name_of(operation)};
}

Kind message(Operation operation) {
  switch (operation) {
    case Operation::send:
      return {Category::p2p_send, name_of(operation)};
    case Operation::receive:
      return {Category::p2p_receive, name_of(operation)};
    case Operation::post_results:
    case Operation::wait_results:
      return {Category::attention_return, results_message};
    default:
      return {Category::attention_dispatch, inputs_message};
  }
}

Kind kind_of(const Span& span) {
  if (span.what == Activity::drain) return {Category::wait, wait_for_sends};
  const Operation operation = span.step->operation;
  switch (span.what) {
    case Activity::pack:
      return {Category::compute_other, operation == Operation::send ? pack_stream : pack};
    case Activity::unpack:
      return {Category::compute_other, operation == Operation::receive ? unpack_stream : unpack};
    case Activity::wait:
      if (operation == Operation::receive) return {Category::wait, wait_for_stage};
      return {Category::wait, name_of(Operation::wait)};
    case Activity::wait_ranks:
      return {Category::wait, wait_for_ranks};
    case Activity::collective:
      if (operation == Operation::gradient_norm) return {Category::collective, agree_on_norm};
      return {Category::collective, name_of(operation)};
    case Activity::tensor:
      return {Category::collective, name_of(span.collective)};
    case Activity::reduce:
      return {Category::collective, gradients_message};
    case Activity::message_out:
    case Activity::message_in:
      return message(operation);
    case Activity::compute:
    case Activity::drain:
      break;
  }
  return computation(operation);
}

bool beside_computation(Activity what) {
  switch (what) {
    case Activity::message_out:
    case Activity::message_in:
    case Activity::reduce:
    case Activity::tensor:
      return true;
    default:
      return false;
  }
}

Phase phase_of(const Step& step) {
  if (step.tick < 0) return Phase::optimizer;
  if (step.again) return Phase::recompute;
  return step.pass == program::Pass::forward ? Phase::forward : Phase::backward;
}

/// A collective of all ranks, or of all of a tensor group: one, whoever records it.
bool spans_tensor_group(std::uint16_t name) {
  switch (name) {
    case agree_on_plan:
    case agree_on_loss:
    case agree_on_norm:
    case tensor_all_gather:
    case tensor_reduce_scatter:
    case tensor_all_reduce:
      return true;
    default:
      return false;
  }
}

std::vector<std::string> make_names() {
  std::vector<std::string> names;
  for (int i = 0; i < program::kOperations; ++i) {
    names.emplace_back(program::name(static_cast<Operation>(i)));
  }
  for (const char* other :
       {"pack", "unpack", "attention_inputs_message", "attention_results_message", "wait_for_stage",
        "wait_for_ranks", "reduce_gradients_message", "agree_on_plan", "agree_on_loss",
        "agree_on_norm", "tensor_all_gather", "tensor_reduce_scatter", "tensor_all_reduce",
        "pack_stream", "unpack_stream", "wait_for_sends", "zero_gradients"}) {
    names.emplace_back(other);
  }
  return names;
}

}  // namespace

std::int64_t nanoseconds(double seconds) {
  return std::llround(seconds * 1e9);
}

const std::vector<std::string>& event_names() {
  static const std::vector<std::string> names = make_names();
  return names;
}

trace::Event twin_of(Event event, Rank offset) {
  if (offset == 0) return event;
  if (event.peer >= 0) event.peer += offset;
  if (event.flow != 0 && !spans_tensor_group(event.name_id)) {
    const auto number = static_cast<std::uint64_t>(offset);
    event.flow = static_cast<std::uint32_t>(Hasher().add(event.flow).add(number).value()) | 1u;
  }
  return event;
}

void Recording::begin_step(std::int64_t step, std::int64_t begin_ns) {
  step_ = static_cast<std::uint32_t>(step);
  begin_ns_ = begin_ns;
  for (RankRecord& rank : ranks_) {
    rank.events.clear();
    rank.flops = 0;
    rank.bytes_received = 0;
  }
}

Event Recording::event(double begin, double end) const {
  Event event;
  event.t_begin_ns = begin_ns_ + nanoseconds(begin);
  event.t_end_ns = begin_ns_ + nanoseconds(end);
  event.step = step_;
  event.flags = trace::flag::kSimulated;
  return event;
}

void Recording::add(const Span& span) {
  RankRecord& rank = ranks_[static_cast<std::size_t>(span.rank)];
  rank.flops += span.flops;
  if (span.what == Activity::message_in) rank.bytes_received += span.bytes;
  if (events_) rank.events.push_back(event_of(span));
}

trace::Event Recording::event_of(const Span& span) const {
  const Kind kind = kind_of(span);
  Event event = this->event(span.begin, span.end);
  event.bytes = span.bytes;
  event.flops = span.flops;
  if (span.still > 0) event.still_ns = nanoseconds(span.still);
  event.peer = span.peer;
  event.flow = in_step(span.flow);
  event.category = kind.category;
  event.name_id = kind.name;
  if (span.step != nullptr) event.set_context(place_of(*span.step));
  if (beside_computation(span.what)) {
    event.lane = Lane::communication;
    event.flags |= trace::flag::kNonBlocking;
  }
  if (span.what == Activity::message_out) event.flags |= trace::flag::kSends;
  if (kind.category == Category::p2p_send || kind.category == Category::p2p_receive) {
    event.peer = span.step->peer;
  }
  return event;
}

trace::EventContext Recording::place_of(const Step& step) const {
  trace::EventContext place;
  place.phase = phase_of(step);
  place.microbatch = static_cast<std::int16_t>(step.microbatch);
  place.layer = static_cast<std::int16_t>(step.layer);
  if (step.tick >= 0) place.tick = step.tick / parts_;
  place.stage = static_cast<std::int16_t>(step.stage);
  const bool halved = parts_ > 1 && program::is_of_half(step.operation);
  if (halved) place.half = static_cast<std::int8_t>(step.part);
  return place;
}

/// Flows repeat from step to step: the step makes them unique. 0 means "no flow".
std::uint32_t Recording::in_step(std::uint32_t flow) const {
  if (flow == 0) return 0;
  return static_cast<std::uint32_t>(Hasher().add(flow).add(step_).value()) | 1u;
}

void Recording::surround(Rank rank, bool trains, double end, double step_seconds) {
  if (!events_) return;
  std::vector<Event>& events = ranks_[static_cast<std::size_t>(rank)].events;
  const auto wait = [&](double begin, double until) {
    Event waiting = event(begin, until);
    waiting.category = Category::wait;
    waiting.name_id = wait_for_ranks;
    return waiting;
  };
  const auto agree = [&](std::uint16_t name, double when) {
    Event agreeing = event(when, when);
    agreeing.category = Category::collective;
    agreeing.name_id = name;
    agreeing.flow = in_step(name);
    return agreeing;
  };
  if (trains) {
    Event zeroing = event(0, 0);
    zeroing.category = Category::compute_other;
    zeroing.name_id = zero_gradients;
    events.insert(events.begin(), zeroing);
  }
  events.insert(events.begin(), {wait(0, 0), agree(agree_on_plan, 0)});
  events.insert(events.end(), {wait(end, step_seconds), agree(agree_on_loss, step_seconds)});
}

}  // namespace cadenza::simulate
