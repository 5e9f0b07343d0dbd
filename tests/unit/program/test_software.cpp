// SPDX-License-Identifier: Apache-2.0
// What other training stacks (config::Software) change in the work of a step, by hand.
#include <gtest/gtest.h>

#include "cadenza/program/operation_work.hpp"
#include "unit/tiny_model.hpp"

namespace cadenza::program::test_software {
namespace {

constexpr std::int64_t kRows = 48;

config::Experiment experiment(const config::Software& software) {
  config::Experiment e;
  e.model = tiny_model(4);
  e.model.d_model = 64;
  e.model.ffn = 96;
  e.batch.tokens = e.batch.microbatch = kRows;
  e.parallel.tensor = 2;
  e.run.dtype = config::Dtype::bfloat16;
  e.cluster.software = software;
  return e;
}

std::int64_t collective_bytes(const config::Experiment& e, Pass pass) {
  std::int64_t bytes = 0;
  for (const Instruction& instruction : layer_instructions(e)) {
    if (instruction.pass != pass) continue;
    for (const TensorCollective& one :
         OperationShapes(e, Layout(e)).collectives(instruction, 0, kRows))
      bytes += one.bytes;
  }
  return bytes;
}

double layer_seconds(const config::Experiment& e) {
  const OperationShapes shapes(e, Layout(e));
  const cost::Rates rates({}, e.cluster, e.model.head_dim());
  double seconds = 0;
  for (const Instruction& instruction : layer_instructions(e)) {
    seconds += seconds_of(instruction, shapes.work(instruction, 0, kRows), rates);
  }
  return seconds;
}

TEST(Software, DecidesTheTypeOfTheResidualStream) {
  config::Software stored;
  stored.residual = config::Precision::stored;
  config::Experiment own = experiment({});
  const config::Experiment other = experiment(stored);
  own.parallel.tensor_sums = config::Precision::sums;
  constexpr std::int64_t kStream = kRows * 64;
  // Two gathers in bfloat16, two sums in float32 or bfloat16.
  EXPECT_EQ(collective_bytes(own, Pass::forward), kStream * (2 * 2 + 2 * 4));
  EXPECT_EQ(collective_bytes(other, Pass::forward), kStream * (2 * 2 + 2 * 2));
  EXPECT_EQ(OperationShapes(own, Layout(own)).stream_bytes(kRows), kStream / 2 * 4);
  EXPECT_EQ(OperationShapes(other, Layout(other)).stream_bytes(kRows), kStream / 2 * 2);
}

TEST(Software, TakesItsTimeForEachPassThroughALayer) {
  config::Software slow;
  slow.layer_seconds = 0.5;
  // A forward pass, and a backward pass of twice as many kernels.
  EXPECT_NEAR(layer_seconds(experiment(slow)) - layer_seconds(experiment({})), 3 * 0.5, 1e-12);
  config::Experiment again = experiment(slow), plain = experiment({});
  again.run.recompute = plain.run.recompute = config::Recompute::layer;
  EXPECT_NEAR(layer_seconds(again) - layer_seconds(plain), 4 * 0.5, 1e-12);
}

TEST(Software, WithoutSequenceParallelismLeavesEveryRankAllRows) {
  config::Software whole;
  whole.sequence_parallel = false;
  const auto shapes = [](const config::Experiment& e) { return OperationShapes(e, Layout(e)); };
  EXPECT_EQ(shapes(experiment(whole)).stream_bytes(kRows),
            2 * shapes(experiment({})).stream_bytes(kRows));
  Instruction outputs;
  outputs.operation = Operation::attention_outputs;
  const double more = shapes(experiment(whole)).work(outputs, 0, kRows).bytes -
                      shapes(experiment({})).work(outputs, 0, kRows).bytes;
  EXPECT_DOUBLE_EQ(more, kRows / 2.0 * 64 * (3 * 4 + 2));  // the norm of the other half
}

TEST(Software, MayPassOverMemoryMoreOften) {
  config::Machine machine;
  machine.products.flops_per_second = 1e30;
  machine.element_wise.bytes_per_second = 1000;
  config::Software unfused, unfused_loss;
  unfused.element_wise_rate = 0.25;
  unfused_loss.loss_rate = 0.25;
  const auto seconds = [&](const config::Software& software, Operation operation) {
    const config::Experiment e = experiment(software);
    Instruction instruction;
    instruction.operation = operation;
    return seconds_of(instruction, OperationShapes(e, Layout(e)).work(instruction, 0, kRows),
                      cost::Rates(machine, e.cluster, 16));
  };
  const auto loss = Operation::loss, layer = Operation::attention_inputs;
  EXPECT_NEAR(seconds(unfused, layer), 4 * seconds({}, layer), 1e-9);
  EXPECT_EQ(seconds(unfused, loss), seconds({}, loss));
  EXPECT_NEAR(seconds(unfused_loss, loss), 4 * seconds({}, loss), 1e-9);
  EXPECT_EQ(seconds(unfused_loss, layer), seconds({}, layer));
  EXPECT_EQ(seconds(unfused, Operation::optimize), seconds({}, Operation::optimize));
}

/// A machine on which a ring of two ranks moves half of a collective's bytes in as many seconds.
config::Machine one_byte_a_second() {
  config::Machine machine;
  machine.links.inside = {0, 1};
  machine.products.flops_per_second = 1;
  return machine;
}

TEST(Software, HidesCollectivesBehindTheProductsBeside) {
  config::Machine machine = one_byte_a_second();
  config::Software software;
  const auto times = [&](double product) {
    const Product beside{ProductKind::forward, product / 2, 1, 1};  // as many FLOPs as seconds
    std::vector<double> seconds;
    for (const TimedCollective& timed :
         tensor_times({{{{Collective::all_gather, 2}, {Collective::reduce_scatter, 6}}, {beside}},
                       {{{Collective::all_gather, 4}}, {}}},
                      {0, 1}, cost::Rates(machine, experiment(software).cluster, 16))) {
      seconds.push_back(timed.seconds);
    }
    return seconds;
  };
  EXPECT_EQ(times(3), (std::vector{1.0, 3.0, 2.0}));  // a processor: in turns
  machine.links.compute_share = 0;
  EXPECT_EQ(times(3), (std::vector{0.25, 0.75, 2.0}));  // one of four seconds is left
  EXPECT_EQ(times(9), (std::vector{0.0, 0.0, 2.0}));
  machine.links.compute_share = 0.5;
  EXPECT_EQ(times(3), (std::vector{0.625, 1.875, 2.0}));  // and half of the others is computing's
  software.overlaps_tensor = false;
  EXPECT_EQ(times(9), (std::vector{1.0, 3.0, 2.0}));
}

TEST(Software, MayHaveFasterKernelsAndNoCopies) {
  config::Machine machine;
  machine.attention.forward = {{128, 128, 3.0}};
  machine.attention.backward = {{128, 128, 7.0}};
  machine.attention.launch_seconds = 1;
  machine.attention.fastest = {2, 1.5};
  config::Software software;
  const Task task{0, {0, 128}, {0, 128}, {0, 1}};
  const auto rates = [&] { return cost::Rates(machine, experiment(software).cluster, 128); };
  EXPECT_DOUBLE_EQ(rates().task_seconds(task, Pass::forward), 2);
  EXPECT_GT(rates().pack(1000, cost::Copied::streams), 0);
  software.attention = config::AttentionKernels::fastest;
  software.copies_streams = false;
  EXPECT_DOUBLE_EQ(rates().task_seconds(task, Pass::forward), 1);
  EXPECT_DOUBLE_EQ(rates().task_seconds(task, Pass::backward), 4);
  EXPECT_EQ(rates().pack(1000, cost::Copied::streams), 0);
  EXPECT_EQ(rates().unpack(1000, cost::Copied::streams), 0);
  EXPECT_GT(rates().pack(1000, cost::Copied::rows), 0);
}

}  // namespace
}  // namespace cadenza::program::test_software
