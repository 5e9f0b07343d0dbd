// SPDX-License-Identifier: Apache-2.0
#include "cadenza/program/operation.hpp"

#include <gmock/gmock.h>

#include <set>
#include <string>

#include "cadenza/program/program.hpp"

namespace cadenza::program::test_operation {
namespace {

Instruction instruction_of(Operation operation, Pass pass = Pass::forward, bool recompute = false) {
  Instruction instruction;
  instruction.operation = operation;
  instruction.pass = pass;
  instruction.recompute = recompute;
  return instruction;
}

TEST(Operations, EventsHaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (std::uint16_t i = 0; i < kEventKinds; ++i) {
    EXPECT_EQ(EventKind::of(i).number(), i);
    names.emplace(name(EventKind::of(i)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kEventKinds));
  EXPECT_EQ(names.count(""), 0u);
  EXPECT_EQ(name(Operation::gather_parameters), "gather_parameters");
  EXPECT_EQ(name(OtherEvent::pack), "pack");
}

/// What the parts of an operation are is what their events' categories say.
TEST(Operations, LeaveEventsOfFittingCategories) {
  for (int i = 0; i < kOperations; ++i) {
    const OperationInfo& info = describe(static_cast<Operation>(i));
    EXPECT_EQ(category(info.pack.value_or(OtherEvent::pack)), Category::compute_other);
    EXPECT_EQ(category(info.unpack.value_or(OtherEvent::unpack)), Category::compute_other);
    EXPECT_EQ(category(info.wait.value_or(Operation::wait)), Category::wait) << info.name;
    EXPECT_EQ(category(info.collective.value_or(OtherEvent::agree_on_norm)), Category::collective);
    // Who packs sends, who unpacks has waited; both know the message.
    EXPECT_EQ(info.unpack.has_value(), info.wait.has_value()) << info.name;
    EXPECT_EQ(info.pack || info.unpack, info.message.has_value()) << info.name;
    const bool exchange = info.granularity == Granularity::exchange;
    if (info.message && exchange) {
      EXPECT_THAT(category(*info.message),
                  ::testing::AnyOf(Category::attention_dispatch, Category::attention_return));
    }
  }
}

TEST(Operations, SpanATensorGroupWhereAllOfItMeets) {
  for (const Collective what :
       {Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce}) {
    EXPECT_TRUE(spans_tensor_group(tensor_event(what)));
  }
  EXPECT_TRUE(spans_tensor_group(OtherEvent::agree_on_norm));
  EXPECT_FALSE(spans_tensor_group(Operation::reduce_gradients));
  EXPECT_FALSE(spans_tensor_group(OtherEvent::gather_layer_message));
  EXPECT_FALSE(spans_tensor_group(OtherEvent::attention_inputs_message));
}

TEST(Operations, KnowTheirPhase) {
  EXPECT_EQ(phase_of(instruction_of(Operation::attend)), Phase::forward);
  EXPECT_EQ(phase_of(instruction_of(Operation::attend, Pass::backward)), Phase::backward);
  EXPECT_EQ(phase_of(instruction_of(Operation::attention_inputs, Pass::forward, true)),
            Phase::recompute);
  for (const Operation update : {Operation::reduce_gradients, Operation::gradient_norm,
                                 Operation::optimize, Operation::gather_parameters}) {
    EXPECT_EQ(phase_of(instruction_of(update, Pass::backward)), Phase::optimizer);
  }
  EXPECT_EQ(phase_of(instruction_of(Operation::gather_layer)), Phase::forward);
  EXPECT_EQ(phase_of(instruction_of(Operation::reduce_layer, Pass::backward)), Phase::backward);
}

TEST(Operations, KnowWhereTheyBelong) {
  Instruction instruction = instruction_of(Operation::attend, Pass::backward);
  instruction.tick = 3;
  instruction.microbatch = 1;
  instruction.layer = 5;
  instruction.stage = 2;
  instruction.half = 1;
  EXPECT_EQ(context_of(instruction, 1), (EventContext{Phase::backward, 1, 5, 3, 2, -1}));
  EXPECT_EQ(context_of(instruction, 2), (EventContext{Phase::backward, 1, 5, 3, 2, 1}));
  instruction.operation = Operation::load;
  EXPECT_EQ(context_of(instruction, 2), (EventContext{Phase::backward, 1, 5, 3, 2, -1}));
  instruction.tick = instruction.microbatch = instruction.layer = instruction.stage =
      40'000;  // of a simulated run
  EXPECT_EQ(context_of(instruction, 1),
            (EventContext{Phase::backward, 40'000, 40'000, 40'000, 40'000}));
  EXPECT_EQ(context_of(instruction_of(Operation::optimize), 2),
            (EventContext{Phase::optimizer, -1, -1, -1, -1, -1}));
}

}  // namespace
}  // namespace cadenza::program::test_operation
