// SPDX-License-Identifier: Apache-2.0
#include "app/planner/experiment_file.hpp"
#include "app/planner/simulate/simulation.hpp"

#include <gmock/gmock.h>

#include <thread>

#include "app/planner/simulate/simulation_report.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/config/load.hpp"

namespace cadenza::app::test_simulation {
namespace {

using ::testing::HasSubstr;

config::Experiment small() {
  config::Experiment e;
  e.model.layers = 4;
  e.model.d_model = 256;
  e.model.heads = 8;
  e.model.kv_heads = 4;
  e.model.ffn = 512;
  e.model.vocab = 512;
  e.data.source = config::Source::synthetic;
  e.data.max_document = 2048;
  e.data.lengths.median = 300;
  e.data.lengths.max = 2048;
  e.batch.tokens = 32768;
  e.batch.microbatch = 2048;
  e.parallel.data = 2;
  return e;
}

config::Experiment with_tensor() {
  config::Experiment e = small();
  e.parallel.tensor = 4;
  e.parallel.context = 2;
  return e;
}

/// A machine on which everything takes time.
config::Machine machine() {
  config::Machine m;
  m.ranks_per_node = 4;
  m.element_wise.bytes_per_second = 1e10;
  m.attention.launch_seconds = 1e-5;
  return m;
}

/// What ranks share is reckoned once for all of them: stages with other layers, halves, servers
/// that keep inputs.
TEST(Simulation, TheMemoryOfARankIsThatWhichItHasAlone) {
  const config::Experiment e = config::parse_experiment(
      "model: {layers: 4, d_model: 256, heads: 8, kv_heads: 4, ffn: 512, vocab: 512}\n"
      "data: {source: synthetic, max_document: 2048, lengths: {median: 300, max: 2048}}\n"
      "batch: {tokens: 32768, microbatch: 2048}\n"
      "parallel: {data: 2, pipeline: 2, context: 2, stages: [1, 3], schedule: 1f1b, "
      "shard: optimizer}\n"
      "attention: {placement: cad, tolerance: 0.1, inputs: keep, overlap: ping_pong}\n",
      "e.yaml", {});
  Simulation simulation(e, machine());
  const SimulatedStep step = simulation.run(0);
  const program::StepShape step_shape(e);
  ASSERT_EQ(step.programs.size(), 8u);
  ASSERT_EQ(step.memory.size(), 8u);
  for (std::size_t i = 0; i < step.programs.size(); ++i) {
    const exec::MemoryEstimate alone =
        exec::estimate_memory(e, step_shape, step.programs[i], step.tick_plans);
    EXPECT_EQ(step.memory[i].total(), alone.total()) << i;
    EXPECT_EQ(step.memory[i].attention, alone.attention) << i;
    EXPECT_EQ(step.memory[i].parameters, alone.parameters) << i;
  }
  EXPECT_GT(step.memory.back().parameters, step.memory.front().parameters);  // it has more layers
}

TEST(Simulation, OneTensorRankStandsForItsGroupExactly) {
  const config::Experiment e = with_tensor();
  config::Experiment each = e;
  each.cluster.slow_ranks = {{5, 1.0}};  // all of them are simulated, none is slower
  ASSERT_TRUE(each.cluster.varies());
  Simulation one(e, machine());
  Simulation all(each, machine());
  const SimulatedStep a = one.run(0);
  const SimulatedStep b = all.run(0);
  EXPECT_EQ(a.programs.size(), 4u);
  ASSERT_EQ(b.programs.size(), 16u);
  EXPECT_NEAR(a.result.seconds, b.result.seconds, 1e-12 * b.result.seconds);
  for (std::size_t rank = 0; rank < 16; ++rank) {
    EXPECT_NEAR(a.result.ranks[rank].attention, b.result.ranks[rank].attention, 1e-12);
    EXPECT_NEAR(a.result.ranks[rank].waiting, b.result.ranks[rank].waiting, 1e-12);
    EXPECT_EQ(a.result.ranks[rank].bytes_sent, b.result.ranks[rank].bytes_sent);
    EXPECT_EQ(a.memory[one.program_of(static_cast<Rank>(rank))].total(), b.memory[rank].total());
  }
}

TEST(Simulation, OneTensorRankStandsForAGroupThatIsSlow) {
  config::Experiment e = with_tensor();
  for (const double rank : {4, 5, 6, 7}) e.cluster.slow_ranks.push_back({rank, 0.5});
  config::Experiment each = e;
  each.cluster.slow_ranks.push_back({8, 1.0});  // in a group of which it is not all
  const SimulatedStep a = Simulation(e, machine()).run(0);
  const SimulatedStep b = Simulation(each, machine()).run(0);
  EXPECT_EQ(a.programs.size(), 4u);
  ASSERT_EQ(b.programs.size(), 16u);
  EXPECT_EQ(a.result.seconds, b.result.seconds);
  EXPECT_GT(a.result.seconds, 1.2 * Simulation(with_tensor(), machine()).run(0).result.seconds);
}

TEST(Simulation, TensorRanksThatShareAnAdapterAreAllSimulated) {
  config::Machine shared = machine();
  shared.links.adapters = 2;  // of the 4 ranks of a node
  EXPECT_EQ(Simulation(with_tensor(), shared).run(0).programs.size(), 16u);
  shared.links.adapters = 4;
  EXPECT_EQ(Simulation(with_tensor(), shared).run(0).programs.size(), 4u);
  shared.ranks_per_node = 6;  // groups lie across nodes, each in another way
  EXPECT_EQ(Simulation(with_tensor(), shared).run(0).programs.size(), 16u);
}

TEST(Simulation, SharesAddUpToTheStep) {
  for (const auto placement : {config::PlacementKind::zigzag, config::PlacementKind::cad}) {
    config::Experiment e = with_tensor();
    e.attention.placement = placement;
    const SimulationSummary s = simulate_experiment(e, machine(), 0, 3);
    const TimeShares& t = s.shares;
    EXPECT_NEAR(t.attention + t.dense + t.copies + t.optimizer + t.waiting + t.collectives + t.idle,
                1.0, 1e-9);
    EXPECT_EQ(s.steps.size(), 3u);
    Simulation simulation(e, machine());
    TimeTable table;
    for (int step = 0; step < 3; ++step) table.add(simulation.run(step).result);
    double all = 0;
    for (const TimeTable::Part& part : table.parts()) all += part.mean;
    EXPECT_NEAR(all, s.seconds, 1e-9 * s.seconds);
    EXPECT_NEAR((s.steps[0] + s.steps[1] + s.steps[2]) / 3, s.seconds, 1e-9 * s.seconds);
    EXPECT_LE(s.lower_bound_seconds, s.seconds);
    EXPECT_GE(s.attention_imbalance, 1.0);
    EXPECT_EQ(s.tokens, 32768);
  }
}

TEST(Simulation, ThreadsDoNotDisturbEachOther) {
  std::vector<config::Experiment> experiments(4, with_tensor());
  for (std::size_t i = 0; i < experiments.size(); ++i) {
    experiments[i].seed = i;
    experiments[i].cluster.jitter = 0.1;
  }
  std::vector<SimulationSummary> together(experiments.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < experiments.size(); ++i) {
      threads.emplace_back(
          [&, i] { together[i] = simulate_experiment(experiments[i], machine(), 0, 2); });
    }
  }
  for (std::size_t i = 0; i < experiments.size(); ++i) {
    EXPECT_EQ(simulate_experiment(experiments[i], machine(), 0, 2).steps, together[i].steps);
  }
}

TEST(Simulation, JudgesMemoryByRunMemoryOrElseTheMachines) {
  config::Machine m = machine();
  Simulation unknown(small(), m);
  EXPECT_THAT(judge_memory(unknown, unknown.run(0)).text(), HasSubstr("memory limit unknown"));

  m.memory = 1'000'000;
  Simulation poor(small(), m);
  const MemoryVerdict verdict = judge_memory(poor, poor.run(0));
  EXPECT_FALSE(verdict.fits());
  EXPECT_EQ(verdict.ranks_beyond, 2);
  EXPECT_THAT(verdict.beyond, ::testing::ElementsAre(HasSubstr("rank 0"), HasSubstr("rank 1")));
  EXPECT_THAT(verdict.text(), HasSubstr("out of memory on 2 ranks"));
  EXPECT_THAT(describe(verdict), HasSubstr("most of it: "));

  config::Experiment rich = small();
  rich.run.memory = std::int64_t{1} << 40;
  Simulation fits(rich, m);
  EXPECT_TRUE(judge_memory(fits, fits.run(0)).fits());
}

TEST(Simulation, TensorGroupsOutOfMemoryAreNamedTogether) {
  config::Machine m = machine();
  m.memory = 1'000'000;
  Simulation poor(with_tensor(), m);
  const MemoryVerdict verdict = judge_memory(poor, poor.run(0));
  EXPECT_EQ(verdict.ranks_beyond, 16);
  EXPECT_THAT(verdict.beyond[1], HasSubstr("ranks 4 to 7"));
}

TEST(Simulation, MemoryStaysAllocated) {
  Simulation simulation(small(), machine());
  std::int64_t before = 0;
  for (std::int64_t step = 0; step < 4; ++step) {
    const std::int64_t now = simulation.run(step).memory[0].total();
    EXPECT_GE(now, before);
    before = now;
  }
}

TEST(TimeTable, NamesTheSlowestRankAndWhy) {
  simulate::Result step;
  step.seconds = 2;
  step.ranks.resize(4);
  for (simulate::RankTimes& rank : step.ranks) rank.attention = rank.dense = 0.5;
  step.ranks[2].attention = 1.0;
  TimeTable table;
  table.add(step);
  EXPECT_THAT(table.slowest(), HasSubstr("rank 2 computes"));
  EXPECT_THAT(table.slowest(), HasSubstr("attention"));
  EXPECT_THAT(table.text(), HasSubstr("core attention"));
  for (simulate::RankTimes& rank : step.ranks) rank.attention = 1.0;
  TimeTable even;
  even.add(step);
  EXPECT_THAT(even.slowest(), HasSubstr("like every rank"));
}

TEST(LoadMachine, IsNominalUnlessTheExperimentNamesOne) {
  EXPECT_EQ(load_machine({}).name, "nominal");
  config::Cluster cluster;
  cluster.machine = "nowhere.yaml";
  try {
    load_machine(cluster);
    ADD_FAILURE() << "found a machine that is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_THAT(error.what(), HasSubstr("nowhere.yaml"));
  }
}

}  // namespace
}  // namespace cadenza::app::test_simulation
