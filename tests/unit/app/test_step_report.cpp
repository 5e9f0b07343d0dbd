// SPDX-License-Identifier: Apache-2.0
// What a step's line says of the balance and the FLOPs of attention, from numbers made up by hand.
#include "app/planner/step_report.hpp"
#include "unit/tiny_model.hpp"

#include <gmock/gmock.h>

namespace cadenza::app::test_step_report {
namespace {

config::Experiment experiment(int trainers, int servers) {
  config::Experiment e;
  e.model = tiny_model();
  e.batch.microbatch = 8;
  e.batch.tokens = 8 * trainers;
  e.parallel.data = trainers;
  e.attention.servers = servers;
  return e;
}

data::Batch batch_of(std::int64_t length) {
  data::BatchDocument document;
  document.tokens = {0, length};
  data::Batch batch;
  batch.microbatches = {{{document}}};
  return batch;
}

std::vector<RankStep> ranks(std::initializer_list<std::int64_t> attention, std::int64_t slowest) {
  std::vector<RankStep> ranks;
  for (const std::int64_t ns : attention) {
    RankStep rank;
    rank.attention_ns = ns;
    rank.slowest_attention_ns = slowest;
    rank.attention_flops = 1000;
    rank.step_ns = 1'000'000'000;
    ranks.push_back(rank);
  }
  return ranks;
}

// Rank 0 takes 3 and 1 ns in the passes of a layer, rank 1 takes 1 and 3.
TEST(StepReport, ByLayerEachPassWaitsForItsSlowestRank) {
  const StepMetrics metrics = step_metrics(experiment(2, 0), batch_of(8), ranks({4, 4}, 6), 1);
  EXPECT_DOUBLE_EQ(metrics.attention_imbalance, 1);
  EXPECT_DOUBLE_EQ(metrics.attention_imbalance_by_layer, 1.5);
  EXPECT_THAT(describe(metrics),
              ::testing::HasSubstr("attention imbalance 1.000 (by layer 1.500)"));
}

TEST(StepReport, OnlyRanksThatServeCount) {
  const auto found = step_metrics(experiment(2, 2), batch_of(8), ranks({50, 50, 2, 6}, 7), 1);
  EXPECT_DOUBLE_EQ(found.attention_imbalance, 1.5);
  EXPECT_DOUBLE_EQ(found.attention_imbalance_by_layer, 7 / 4.0);
  const auto none = step_metrics(experiment(2, 2), batch_of(8), ranks({50, 50, 0, 0}, 0), 1);
  EXPECT_DOUBLE_EQ(none.attention_imbalance, 1);
  EXPECT_DOUBLE_EQ(none.attention_imbalance_by_layer, 1);
}

TEST(StepReport, StagesWithPoolsOfTheirOwnWaitForTheirOwnRanks) {
  config::Experiment e = experiment(4, 0);
  e.parallel.data = 2;
  e.parallel.pipeline = 2;
  e.attention.placement = config::PlacementKind::colocated;
  // Slowest: 3 on stage 0, 5 on stage 1; their means are 2 and 5.
  EXPECT_DOUBLE_EQ(
      step_metrics(e, batch_of(8), ranks({1, 3, 5, 5}, 8), 1).attention_imbalance_by_layer,
      8 / 7.0);
}

TEST(StepReport, FlopsOfDenseAttentionCountAllPassesThatRun) {
  config::Experiment e = experiment(2, 0);
  const double forward = 2 * 4.0 * 8 * 4 * 36;  // layers, FLOPs of a pair, head_dim, heads, pairs
  const auto dense = [&] {
    return step_metrics(e, batch_of(8), ranks({1, 1}, 1), 1).dense_attention_flops;
  };
  EXPECT_DOUBLE_EQ(dense(), 3.5 * forward);
  e.run.recompute = config::Recompute::mlp;
  EXPECT_DOUBLE_EQ(dense(), 3.5 * forward);
  e.run.recompute = config::Recompute::attention;
  EXPECT_DOUBLE_EQ(dense(), 4.5 * forward);
  EXPECT_DOUBLE_EQ(step_record(e, batch_of(8)).dense_attention_flops, 4.5 * forward);
}

TEST(StepReport, SparseStepsSayWhatWasComputed) {
  StepMetrics metrics = step_metrics(experiment(2, 0), batch_of(8), ranks({1, 1}, 1), 1);
  EXPECT_EQ(metrics.attention_flops, 2000);
  EXPECT_THAT(describe(metrics), ::testing::Not(::testing::HasSubstr("sparse")));
  metrics.sparsity = 0.75;
  metrics.dense_attention_flops = 8000;
  EXPECT_THAT(describe(metrics), ::testing::HasSubstr("sparse 75.0 % (2K of 8K FLOPs)"));
}

}  // namespace
}  // namespace cadenza::app::test_step_report
