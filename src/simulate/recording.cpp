// SPDX-License-Identifier: Apache-2.0
#include "cadenza/simulate/recording.hpp"

#include <cmath>

#include "cadenza/base/at.hpp"
#include "cadenza/base/hash.hpp"

namespace cadenza::simulate {
namespace {

using program::EventKind;
using program::OtherEvent;
using trace::Event;
using trace::Lane;

EventKind kind_of(const Span& span) {
  if (span.what == Activity::drain) return OtherEvent::wait_for_sends;
  const program::OperationInfo& operation = program::describe(span.instruction->operation);
  switch (span.what) {
    case Activity::pack:
      return operation.pack.value();
    case Activity::unpack:
      return operation.unpack.value();
    case Activity::wait:
      return operation.wait.value();
    case Activity::wait_ranks:
      return OtherEvent::wait_for_ranks;
    case Activity::collective:
      return operation.collective.value();
    case Activity::tensor:
      return program::tensor_event(span.collective);
    case Activity::gather:
      return OtherEvent::gather_layer_message;
    case Activity::reduce:
      return OtherEvent::reduce_gradients_message;
    case Activity::message_out:
    case Activity::message_in:
      return operation.message.value();
    case Activity::compute:
    case Activity::wait_layer:
    case Activity::drain:
      break;
  }
  return operation.operation;
}

bool beside_computation(Activity what) {
  return what == Activity::message_out || what == Activity::message_in ||
         what == Activity::gather || what == Activity::reduce || what == Activity::tensor;
}

void set_kind(EventKind kind, Event& event) {
  event.category = program::category(kind);
  event.name_id = kind.number();
}

std::vector<std::string> make_names() {
  std::vector<std::string> names;
  for (std::uint16_t i = 0; i < program::kEventKinds; ++i) {
    names.emplace_back(program::name(EventKind::of(i)));
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
  if (event.flow != 0 && !program::spans_tensor_group(EventKind::of(event.name_id))) {
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
  event.begin_ns = begin_ns_ + nanoseconds(begin);
  event.end_ns = begin_ns_ + nanoseconds(end);
  event.step = step_;
  event.flags = trace::flag::kSimulated;
  return event;
}

void Recording::add(const Span& span) {
  RankRecord& rank = ranks_[at(span.rank)];
  rank.flops += span.flops;
  if (span.what == Activity::message_in) rank.bytes_received += span.bytes;
  if (events_) rank.events.push_back(event_of(span));
}

trace::Event Recording::event_of(const Span& span) const {
  Event event = this->event(span.begin, span.end);
  event.bytes = span.bytes;
  event.flops = span.flops;
  if (span.still > 0) event.still_ns = nanoseconds(span.still);
  event.peer = span.peer;
  event.flow = in_step(span.flow);
  set_kind(kind_of(span), event);
  if (span.instruction != nullptr)
    event.set_context(program::context_of(*span.instruction, halves_));
  if (beside_computation(span.what)) {
    event.lane = Lane::communication;
    event.flags |= trace::flag::kNonBlocking;
  }
  if (span.what == Activity::message_out) event.flags |= trace::flag::kSends;
  if (event.category == Category::p2p_send || event.category == Category::p2p_receive) {
    event.peer = span.instruction->peer;
  }
  return event;
}

/// Makes flows, which repeat in every step, unique by the step. 0 means "no flow".
std::uint32_t Recording::in_step(std::uint32_t flow) const {
  if (flow == 0) return 0;
  return static_cast<std::uint32_t>(Hasher().add(flow).add(step_).value()) | 1u;
}

void Recording::surround(Rank rank, bool trains, const RankTimes& times, double opens,
                         double step_seconds) {
  if (!events_) return;
  std::vector<Event>& events = ranks_[at(rank)].events;
  const auto wait = [&](double begin, double until) {
    Event waiting = event(begin, until);
    set_kind(OtherEvent::wait_for_ranks, waiting);
    return waiting;
  };
  const auto agree = [&](EventKind kind, double when) {
    Event agreeing = event(when, when);
    set_kind(kind, agreeing);
    agreeing.flow = in_step(kind.number());
    return agreeing;
  };
  if (trains) {
    Event zeroing = event(opens, opens);
    set_kind(OtherEvent::zero_gradients, zeroing);
    events.insert(events.begin(), zeroing);
  }
  events.insert(events.begin(),
                {wait(times.begin, opens), agree(OtherEvent::agree_on_plan, opens)});
  events.insert(events.end(),
                {wait(times.end, step_seconds), agree(OtherEvent::agree_on_loss, step_seconds)});
}

}  // namespace cadenza::simulate
