// SPDX-License-Identifier: Apache-2.0
#include "cadenza/simulate/recording.hpp"

#include <gmock/gmock.h>

#include <set>

namespace cadenza::simulate::test_recording {
namespace {

using program::Instruction;
using program::Operation;
using program::Pass;
using trace::Event;
using trace::Lane;

constexpr std::uint8_t kSimulated = 2;
constexpr std::uint8_t kNonBlocking = 4;
constexpr std::uint8_t kSends = 8;

Instruction attention_instruction(Operation operation) {
  Instruction instruction;
  instruction.operation = operation;
  instruction.pass = Pass::backward;
  instruction.tick = 3;
  instruction.microbatch = 1;
  instruction.layer = 5;
  instruction.stage = 2;
  return instruction;
}

Span span_of(const Instruction& instruction, Activity what) {
  Span span;
  span.instruction = &instruction;
  span.what = what;
  span.begin = 1e-6;
  span.end = 3e-6;
  return span;
}

Event record(const Span& span, int parts = 1, std::int64_t step = 7) {
  Recording recording(1, parts, true);
  recording.begin_step(step, 1000);
  recording.add(span);
  return recording.of(0).events.at(0);
}

std::string name_of(const Event& event) {
  return event_names().at(event.name_id);
}

struct Case {
  Operation operation;
  Activity what;
  std::string name;
  Category category;
  Lane lane;
};

TEST(Recording, NamesEventsAsARunDoes) {
  const Lane compute = Lane::compute;
  const Lane beside = Lane::communication;
  const std::vector<Case> cases = {
      {Operation::load, Activity::compute, "load", Category::data, compute},
      {Operation::embed, Activity::compute, "embed", Category::compute_other, compute},
      {Operation::attention_inputs, Activity::compute, "attention_inputs", Category::compute_dense,
       compute},
      {Operation::begin_attention, Activity::compute, "begin_attention", Category::compute_other,
       compute},
      {Operation::attend, Activity::compute, "attend", Category::compute_attention, compute},
      {Operation::loss, Activity::compute, "loss", Category::compute_dense, compute},
      {Operation::optimize, Activity::compute, "optimize", Category::optimizer, compute},
      {Operation::post, Activity::pack, "pack", Category::compute_other, compute},
      {Operation::wait, Activity::wait, "wait", Category::wait, compute},
      {Operation::wait_results, Activity::wait, "wait", Category::wait, compute},
      {Operation::wait_results, Activity::unpack, "unpack", Category::compute_other, compute},
      {Operation::send, Activity::pack, "pack_stream", Category::compute_other, compute},
      {Operation::receive, Activity::unpack, "unpack_stream", Category::compute_other, compute},
      {Operation::post, Activity::drain, "wait_for_sends", Category::wait, compute},
      {Operation::receive, Activity::wait, "wait_for_stage", Category::wait, compute},
      {Operation::reduce_gradients, Activity::wait_ranks, "wait_for_ranks", Category::wait,
       compute},
      {Operation::reduce_gradients, Activity::collective, "reduce_gradients", Category::collective,
       compute},
      {Operation::gather_parameters, Activity::collective, "gather_parameters",
       Category::collective, compute},
      {Operation::wait_layer, Activity::wait_layer, "wait_layer", Category::wait, compute},
      {Operation::wait_layer, Activity::gather, "gather_layer_message", Category::collective,
       beside},
      {Operation::reduce_gradients, Activity::reduce, "reduce_gradients_message",
       Category::collective, beside},
      {Operation::post, Activity::message_out, "attention_inputs_message",
       Category::attention_dispatch, beside},
      {Operation::wait_results, Activity::message_in, "attention_results_message",
       Category::attention_return, beside},
      {Operation::send, Activity::message_out, "send", Category::p2p_send, beside},
      {Operation::receive, Activity::message_in, "receive", Category::p2p_receive, beside},
  };
  for (const Case& c : cases) {
    const Instruction instruction = attention_instruction(c.operation);
    const Event event = record(span_of(instruction, c.what));
    EXPECT_EQ(name_of(event), c.name);
    EXPECT_EQ(event.category, c.category) << c.name;
    EXPECT_EQ(event.lane, c.lane) << c.name;
    const int sends = c.what == Activity::message_out ? kSends : 0;
    EXPECT_EQ(event.flags, kSimulated | sends | (c.lane == beside ? kNonBlocking : 0)) << c.name;
  }
}

TEST(Recording, PlacesEvents) {
  const Instruction instruction = attention_instruction(Operation::attend);
  Span span = span_of(instruction, Activity::compute);
  span.flops = 12;
  const Event event = record(span);
  EXPECT_EQ(event.begin_ns, 2000);
  EXPECT_EQ(event.end_ns, 4000);
  EXPECT_EQ(event.step, 7u);
  EXPECT_EQ(event.microbatch, 1);
  EXPECT_EQ(event.layer, 5);
  EXPECT_EQ(event.flops, 12);
  EXPECT_EQ(event.phase, Phase::backward);
  EXPECT_EQ(event.tick, 3);
  EXPECT_EQ(event.stage, 2);
  EXPECT_EQ(event.half, -1);
}

TEST(Recording, CountsTicksAndHalvesAsPlansDo) {
  Instruction instruction = attention_instruction(Operation::attend);
  instruction.plan = 7;  // two a tick in ping-pong
  instruction.half = 1;
  const Event half = record(span_of(instruction, Activity::compute), 2);
  EXPECT_EQ(half.tick, 3);
  EXPECT_EQ(half.half, 1);
  instruction.operation = Operation::load;
  const Event whole = record(span_of(instruction, Activity::compute), 2);
  EXPECT_EQ(whole.tick, 3);
  EXPECT_EQ(whole.half, -1);
  Instruction update;
  update.operation = Operation::optimize;
  EXPECT_EQ(record(span_of(update, Activity::compute), 2).tick, -1);
}

TEST(Recording, TellsThePhasesApart) {
  Instruction instruction = attention_instruction(Operation::attention_inputs);
  instruction.pass = Pass::forward;
  EXPECT_EQ(record(span_of(instruction, Activity::compute)).phase, Phase::forward);
  instruction.recompute = true;
  EXPECT_EQ(record(span_of(instruction, Activity::compute)).phase, Phase::recompute);
  Instruction update;
  update.operation = Operation::optimize;
  update.pass = Pass::backward;
  EXPECT_EQ(record(span_of(update, Activity::compute)).phase, Phase::optimizer);
}

TEST(Recording, MessagesKnowTheOtherEnd) {
  const Instruction wait = attention_instruction(Operation::wait);
  Span message = span_of(wait, Activity::message_in);
  message.bytes = 640;
  message.peer = 4;
  message.flow = 9;
  const Event event = record(message);
  EXPECT_EQ(event.bytes, 640);
  EXPECT_EQ(event.peer, 4);
  EXPECT_NE(event.flow, 0u);
  EXPECT_EQ(event.flow, record(message).flow);
  EXPECT_NE(event.flow, record(message, 1, 8).flow) << "the next step has flows of its own";
  message.flow = 0;
  EXPECT_EQ(record(message).flow, 0u);
  Instruction send = attention_instruction(Operation::send);
  send.peer = 2;
  EXPECT_EQ(record(span_of(send, Activity::message_out)).peer, 2);
}

TEST(Recording, TwinsExchangeMessagesOfTheirOwn) {
  const Instruction wait = attention_instruction(Operation::wait);
  Span message = span_of(wait, Activity::message_in);
  message.peer = 4;
  message.flow = 9;
  const Event event = record(message);
  EXPECT_EQ(twin_of(event, 0).flow, event.flow);
  EXPECT_EQ(twin_of(event, 1).peer, 5);
  EXPECT_NE(twin_of(event, 1).flow, event.flow);
  EXPECT_NE(twin_of(event, 1).flow, twin_of(event, 2).flow);
  const Instruction norm = attention_instruction(Operation::gradient_norm);
  Span meeting = span_of(norm, Activity::collective);
  meeting.flow = 9;
  const Event together = record(meeting);
  EXPECT_EQ(twin_of(together, 1).flow, together.flow) << "a collective that both are in";
  EXPECT_EQ(twin_of(together, 1).peer, -1);
  meeting.what = Activity::tensor;
  EXPECT_EQ(twin_of(record(meeting), 1).flow, together.flow);
}

TEST(Recording, NamesCollectivesOfATensorGroup) {
  const Instruction instruction = attention_instruction(Operation::attention_inputs);
  Span span = span_of(instruction, Activity::tensor);
  for (const auto& [collective, name] :
       {std::pair(Collective::all_gather, "tensor_all_gather"),
        std::pair(Collective::reduce_scatter, "tensor_reduce_scatter"),
        std::pair(Collective::all_reduce, "tensor_all_reduce")}) {
    span.collective = collective;
    const Event event = record(span);
    EXPECT_EQ(name_of(event), name);
    EXPECT_EQ(event.category, Category::collective);
    EXPECT_EQ(event.lane, Lane::communication);
    EXPECT_EQ(event.flags, kSimulated | kNonBlocking);
  }
}

TEST(Recording, AddsWhatSurroundsAProgram) {
  const Instruction instruction = attention_instruction(Operation::attend);
  Recording recording(2, 1, true);
  recording.begin_step(0, 500);
  recording.add(span_of(instruction, Activity::compute));
  RankTimes times;
  times.begin = 1e-6;
  times.end = 3e-6;
  recording.surround(0, true, times, 2e-6, 10e-6);
  std::vector<std::string> names;
  for (const Event& event : recording.of(0).events) names.push_back(name_of(event));
  EXPECT_THAT(names, ::testing::ElementsAre("wait_for_ranks", "agree_on_plan", "zero_gradients",
                                            "attend", "wait_for_ranks", "agree_on_loss"));
  const auto& events = recording.of(0).events;
  EXPECT_EQ(events[0].begin_ns, 1500);
  EXPECT_EQ(events[0].end_ns, 2500) << "until the last rank begins its step";
  EXPECT_EQ(events[1].begin_ns, 2500);
  EXPECT_EQ(events[2].begin_ns, 2500);
  const Event& waiting = recording.of(0).events[4];
  EXPECT_EQ(waiting.begin_ns, 3500);
  EXPECT_EQ(waiting.end_ns, 10500);
  EXPECT_EQ(waiting.phase, Phase::other);
  EXPECT_EQ(waiting.microbatch, -1);
  recording.surround(1, false, times, 2e-6, 10e-6);
  EXPECT_EQ(recording.of(1).events.size(), 4u) << "a server has no gradients";
}

TEST(Recording, KnowsWhatARankWaitsForWhenItsProgramHasEnded) {
  Span span;
  span.what = Activity::drain;
  const Event event = record(span);
  EXPECT_EQ(name_of(event), "wait_for_sends");
  EXPECT_EQ(event.category, Category::wait);
  EXPECT_EQ(event.phase, Phase::other);
}

TEST(Recording, CountsWithoutEvents) {
  const Instruction attend = attention_instruction(Operation::attend);
  const Instruction wait = attention_instruction(Operation::wait);
  Recording recording(2, 1, false);
  recording.begin_step(0, 0);
  Span work = span_of(attend, Activity::compute);
  work.rank = 1;
  work.flops = 8;
  recording.add(work);
  Span message = span_of(wait, Activity::message_in);
  message.rank = 1;
  message.bytes = 64;
  recording.add(message);
  message.what = Activity::message_out;
  recording.add(message);
  recording.surround(1, true, {}, 0, 0);
  EXPECT_TRUE(recording.of(1).events.empty());
  EXPECT_EQ(recording.of(1).flops, 8);
  EXPECT_EQ(recording.of(1).bytes_received, 64);
  EXPECT_EQ(recording.of(0).bytes_received, 0);
  recording.begin_step(1, 0);
  EXPECT_EQ(recording.of(1).flops, 0);
}

TEST(Recording, NamesAreDistinct) {
  const auto& names = event_names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
}

TEST(Recording, RoundsToNanoseconds) {
  EXPECT_EQ(nanoseconds(1.4e-9), 1);
  EXPECT_EQ(nanoseconds(1.6e-9), 2);
  EXPECT_EQ(nanoseconds(3600), 3'600'000'000'000);
}

}  // namespace
}  // namespace cadenza::simulate::test_recording
