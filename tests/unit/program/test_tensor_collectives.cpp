// SPDX-License-Identifier: Apache-2.0
// The collectives of a tensor group, against sequence parallelism as Megatron-LM has it (arXiv
// 2205.05198): a gather before matrices that are cut by columns, a reduce-scatter after those that
// are cut by rows, the mirror image backward, where gathered rows are gathered again.
#include <gmock/gmock.h>

#include "cadenza/program/operation_work.hpp"
#include "unit/tiny_model.hpp"

namespace cadenza::program::test_tensor_collectives {
namespace {

constexpr std::int64_t kRows = 48;
constexpr TensorCollective kGather{Collective::all_gather, kRows * 64 * 2};
constexpr TensorCollective kGatherSums{Collective::all_gather, kRows * 64 * 4};
constexpr TensorCollective kReduce{Collective::reduce_scatter, kRows * 64 * 2};

config::Experiment experiment(int tensor = 2) {
  config::Experiment e;
  e.model = tiny_model(6);
  e.model.d_model = 64;
  e.model.ffn = 96;
  e.model.vocab = 101;
  e.batch.tokens = e.batch.microbatch = kRows;
  e.parallel.tensor = tensor;
  e.parallel.pipeline = 2;
  e.run.dtype = config::Dtype::bfloat16;
  return e;
}

std::vector<TensorCollective> list(const config::Experiment& e, Operation operation, Pass pass,
                                   bool recompute = false, Rank rank = 0) {
  Instruction instruction;
  instruction.operation = operation;
  instruction.pass = pass;
  instruction.recompute = recompute;
  return OperationShapes(e, Layout(e)).collectives(instruction, rank, kRows);
}

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(TensorCollectives, OfTheForwardPass) {
  const config::Experiment e = experiment();
  EXPECT_THAT(list(e, Operation::embed, Pass::forward), ElementsAre(kReduce));
  EXPECT_THAT(list(e, Operation::attention_inputs, Pass::forward), ElementsAre(kGather));
  EXPECT_THAT(list(e, Operation::attention_outputs, Pass::forward),
              ElementsAre(kReduce, kGather, kReduce));
}

TEST(TensorCollectives, OfTheBackwardPass) {
  config::Experiment e = experiment();
  EXPECT_THAT(list(e, Operation::embed_gradient, Pass::backward), ElementsAre(kGatherSums));
  EXPECT_THAT(list(e, Operation::attention_inputs, Pass::backward), ElementsAre(kGather, kReduce));
  EXPECT_THAT(list(e, Operation::attention_outputs, Pass::backward),
              ElementsAre(kGather, kGather, kReduce, kGather));
  e.run.recompute = config::Recompute::mlp;  // gathers the norm's output earlier
  EXPECT_THAT(list(e, Operation::attention_outputs, Pass::backward),
              ElementsAre(kGather, kGather, kReduce, kGather));
}

TEST(TensorCollectives, SumPartsInTheTypeOfSumsIfAsked) {
  config::Experiment e = experiment();
  e.parallel.tensor_sums = config::Precision::sums;
  EXPECT_THAT(list(e, Operation::embed, Pass::forward),
              ElementsAre(TensorCollective{Collective::reduce_scatter, kRows * 64 * 4}));
}

/// Every product of an operation runs once, beside collectives for all shards but one.
TEST(TensorCollectives, LieBesideProductsOfTheirOperation) {
  const config::Experiment e = experiment(3);
  const OperationShapes shapes(e, Layout(e));
  Instruction inputs;
  inputs.operation = Operation::attention_inputs;
  const auto forward = shapes.overlaps(inputs, 0, kRows);
  ASSERT_EQ(forward.size(), 1u);
  ASSERT_EQ(forward[0].beside.size(), 3u);
  EXPECT_DOUBLE_EQ(forward[0].beside[0].rows, 32);  // of 48: the first shard waits for nothing
  EXPECT_DOUBLE_EQ(forward[0].beside[0].columns, 64 / 3.0);
  EXPECT_EQ(shapes.work(inputs, 0, kRows).products.size(), 9u);
  inputs.pass = Pass::backward;
  const auto backward = shapes.overlaps(inputs, 0, kRows);
  ASSERT_EQ(backward[0].beside.size(), 2u);
  EXPECT_EQ(backward[0].beside[1].kind, ProductKind::weight_gradient);
  EXPECT_DOUBLE_EQ(backward[0].beside[1].depth, kRows);
}

TEST(TensorCollectives, OfWhatIsComputedAgain) {
  const config::Experiment e = experiment();
  EXPECT_THAT(list(e, Operation::attention_inputs, Pass::forward, true), ElementsAre(kGather));
  EXPECT_THAT(list(e, Operation::attention_outputs, Pass::forward, true),
              ElementsAre(kReduce, kGather));
}

TEST(TensorCollectives, OfTheLossGoOverAllRowsOnce) {
  config::Experiment e = experiment();
  e.model.vocab = std::int64_t{1} << 19;  // logits of 16 rows at a time
  const auto found = list(e, Operation::loss, Pass::backward);
  ASSERT_EQ(found.size(), 2u + 2 * 3);
  EXPECT_EQ(found.front(), kGather);
  EXPECT_EQ(found.back(), kReduce);
  for (std::size_t i = 1; i + 1 < found.size(); ++i) {
    EXPECT_EQ(found[i], (TensorCollective{Collective::all_reduce, (i % 2 == 1 ? 1 : 2) * 16 * 4}));
  }
}

TEST(TensorCollectives, OfTheUpdateSumTheGainsOfAStage) {
  const config::Experiment e = experiment();
  EXPECT_THAT(list(e, Operation::reduce_gradients, Pass::backward, false, 0),
              ElementsAre(TensorCollective{Collective::all_reduce, 2 * 3 * 64 * 4}));
  EXPECT_THAT(list(e, Operation::reduce_gradients, Pass::backward, false, 2),
              ElementsAre(TensorCollective{Collective::all_reduce, (2 * 3 + 1) * 64 * 4}));
  config::Experiment normed = e;  // heads of 16
  normed.model.qk_norm = normed.model.qkv_bias = true;
  EXPECT_THAT(list(normed, Operation::reduce_gradients, Pass::backward, false, 0),
              ElementsAre(TensorCollective{Collective::all_reduce, 2 * 3 * (64 + 16) * 4}));
}

TEST(TensorCollectives, AreNoneOfAllElseAndOfOneRank) {
  const config::Experiment e = experiment();
  const config::Experiment alone = experiment(1);
  for (int i = 0; i < kOperations; ++i) {
    const auto operation = static_cast<Operation>(i);
    EXPECT_THAT(list(alone, operation, Pass::backward), IsEmpty());
    const bool in_group = describe(operation).group == Group::tensor;
    if (operation == Operation::reduce_gradients) continue;
    EXPECT_EQ(list(e, operation, Pass::backward).empty(), !in_group) << name(operation);
  }
}

TEST(TensorCollectives, LeaveEachRankItsRowsOfTheStream) {
  const config::Experiment e = experiment();
  EXPECT_EQ(OperationShapes(e, Layout(e)).stream_bytes(kRows), kRows / 2 * 64 * 4);
}

}  // namespace
}  // namespace cadenza::program::test_tensor_collectives
