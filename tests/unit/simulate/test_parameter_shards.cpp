// SPDX-License-Identifier: Apache-2.0
// Steps whose ranks have shards of the parameters, worked out by hand.
#include <gmock/gmock.h>

#include "cadenza/cost/flops.hpp"
#include "cadenza/simulate/simulator.hpp"
#include "unit/program/support.hpp"

namespace cadenza::simulate::test_parameter_shards {
namespace {

using config::Machine;
using config::Shard;
using program::StepShape;
using program::TickPlans;

constexpr int kLayers = 3;
constexpr int kMicrobatches = 2;

config::Experiment experiment(int data, Shard shard) {
  config::Experiment e = program::test::experiment_of(data, 0, kLayers, kMicrobatches);
  e.model.ffn = 12;
  e.model.vocab = 40;
  e.parallel.shard = shard;
  e.run.dtype = config::Dtype::bfloat16;
  return e;
}

/// Messages take no latency, and nothing but them and matrix products takes time.
Machine machine(double flops_per_second, double bytes_per_second) {
  Machine made;
  made.dtype = config::Dtype::bfloat16;
  made.products.flops_per_second = flops_per_second;
  made.element_wise.bytes_per_second = 1e30;
  made.links.inside = {0, bytes_per_second};
  return made;
}

/// Documents of `tokens`, one on each rank, whose attention is for nobody to compute.
TickPlans plans(int ranks, std::int64_t tokens) {
  TickPlans made;
  for (plan::Plan* plan : {&made.forward, &made.backward}) {
    plan->workload.ranks = ranks;
    for (Rank rank = 0; rank < ranks; ++rank) {
      plan->workload.lengths.push_back(tokens);
      plan->workload.homes.push_back({rank, rank, {0, tokens}});
    }
  }
  program::add_traffic(made);
  return made;
}

Result run(const config::Experiment& e, const Machine& m, std::int64_t tokens,
           const Observer& observe = {}) {
  const StepShape step_shape(e);
  const std::vector<TickPlans> tick_plans(kMicrobatches,
                                          plans(static_cast<int>(e.parallel.data), tokens));
  const Costs costs(m, e, step_shape.layout);
  return simulate(e, step_shape, program::test::make_programs(step_shape, tick_plans), tick_plans,
                  costs, observe);
}

double layer_elements(const config::Experiment& e) {
  return static_cast<double>(cost::layer_parameters(e.model));
}

double table_elements(const config::Experiment& e) {
  return 2.0 * static_cast<double>(e.model.vocab * e.model.d_model);
}

TEST(ParameterShards, OfOneRankCostNothing) {
  const Machine m = machine(1e3, 1);
  const double whole = run(experiment(1, Shard::none), m, 8).seconds;
  EXPECT_GT(whole, 0);
  EXPECT_DOUBLE_EQ(run(experiment(1, Shard::parameters), m, 8).seconds, whole);
}

/// Of n ranks each receives all parts of what is gathered or summed but its own.
TEST(ParameterShards, OnASlowNetworkAStepTakesItsBytes) {
  constexpr double kRate = 1e3;
  for (const int ranks : {2, 5}) {
    const config::Experiment e = experiment(ranks, Shard::parameters);
    const Result result = run(e, machine(1e30, kRate), 8);
    const double passes = kMicrobatches * kLayers;
    // In bfloat16 every layer in both passes, the tables once; sums in float32.
    const double gathered = 2 * (2 * passes * layer_elements(e) + table_elements(e));
    const double summed = 4 * (passes * layer_elements(e) + table_elements(e));
    const double seconds = (gathered + summed) * (ranks - 1) / ranks / kRate;
    EXPECT_NEAR(result.seconds, seconds, 1e-9 * seconds);
    EXPECT_NEAR(result.ranks[0].communication, seconds, 1e-9 * seconds);
    EXPECT_NEAR(result.ranks[0].data_parallel_wait, 0, 1e-9 * seconds);
  }
}

/// All gathers but the first of every microbatch are hidden, before which the last sum of the one
/// before has its turn, and no updated weights are returned.
TEST(ParameterShards, WhereRanksComputeLongEnoughOnlyFirstGathersAreSeen) {
  constexpr double kRate = 1e6;
  const config::Experiment e = experiment(2, Shard::parameters);
  const Machine m = machine(1e4, kRate);
  const double optimizer = run(experiment(2, Shard::optimizer), m, 8).seconds;
  const double layer = 2 * layer_elements(e) / 2 / kRate;
  const double tables = 2 * table_elements(e) / 2 / kRate;
  const double returned = kLayers * layer + tables;
  const double first = tables + kMicrobatches * layer;
  const double sums = (kMicrobatches - 1) * 2 * layer;  // in float32
  EXPECT_NEAR(run(e, m, 8).seconds, optimizer - returned + first + sums, 1e-9 * optimizer);
}

/// Of updated weights that are gathered beside the first forward pass, the tables and the first
/// layer are seen; of sums after the backward passes all, in the type of the stack.
TEST(OtherStacks, HideGathersAndShowLateSums) {
  constexpr double kRate = 1e6;
  const Machine m = machine(1e4, kRate);
  const auto seconds = [&](bool ahead, bool late, config::Precision type) {
    config::Experiment e = experiment(2, Shard::optimizer);
    e.cluster.software.overlaps_gathers = ahead;
    e.cluster.software.overlaps_gradients = !late;
    e.cluster.software.gradients = type;
    return run(e, m, 8).seconds;
  };
  const config::Experiment e = experiment(2, Shard::optimizer);
  const double layer = 2 * layer_elements(e) / 2 / kRate;  // in bfloat16
  const double tables = 2 * table_elements(e) / 2 / kRate;
  const double usual = seconds(false, false, config::Precision::sums);
  EXPECT_NEAR(usual - seconds(true, false, config::Precision::sums), (kLayers - 1) * layer,
              1e-9 * usual);
  // Beside computation all sums but that of the last layer, and of what lies outside layers, hide.
  EXPECT_NEAR(seconds(false, true, config::Precision::sums) - usual, (kLayers - 1) * 2 * layer,
              1e-9 * usual);
  EXPECT_NEAR(usual - seconds(false, false, config::Precision::stored), layer + tables,
              1e-9 * usual);
}

TEST(ParameterShards, ARankWaitsForTheLastToAskForALayer) {
  config::Experiment e = experiment(2, Shard::parameters);
  e.cluster.slow_ranks = {{1, 0.5}};
  const Result result = run(e, machine(1e4, 1e30), 8);
  EXPECT_GT(result.ranks[0].dense, 0);
  EXPECT_NEAR(result.ranks[1].dense, 2 * result.ranks[0].dense, 1e-9);
  EXPECT_NEAR(result.ranks[0].data_parallel_wait, result.ranks[0].dense, 1e-9);
  EXPECT_NEAR(result.ranks[1].data_parallel_wait, 0, 1e-9);
  for (const RankTimes& rank : result.ranks) EXPECT_NEAR(rank.communication, 0, 1e-9);
}

/// Both ranks record each gather, from their post on, and a wait that ends with it or later.
TEST(ParameterShards, EveryGatherIsAMessageAndAWait) {
  std::map<std::pair<Rank, std::uint32_t>, std::vector<double>> ends;
  std::vector<double> gathered[2], waited[2];
  const auto observe = [&](const Span& span) {
    if (span.what == Activity::gather) {
      EXPECT_GT(span.bytes, 0);
      ends[{span.rank, span.flow}].push_back(span.end);
      gathered[span.rank].push_back(span.end);
    }
    if (span.what == Activity::wait_layer) waited[span.rank].push_back(span.end);
  };
  run(experiment(2, Shard::parameters), machine(1e4, 1e4), 8, observe);
  const std::size_t expected = 1 + 2 * kMicrobatches * kLayers;
  for (const Rank rank : {0, 1}) {
    ASSERT_EQ(gathered[rank].size(), expected);
    ASSERT_EQ(waited[rank].size(), expected);
    for (std::size_t i = 0; i < expected; ++i) EXPECT_GE(waited[rank][i], gathered[rank][i]);
  }
  for (const auto& [key, times] : ends) {
    EXPECT_EQ((ends[{1 - key.first, key.second}]), times);
  }
}

}  // namespace
}  // namespace cadenza::simulate::test_parameter_shards
