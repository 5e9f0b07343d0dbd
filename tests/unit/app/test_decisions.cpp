// SPDX-License-Identifier: Apache-2.0
// attention.overlap: auto.
#include "app/planner/search/search.hpp"

#include <gmock/gmock.h>

#include "cadenza/config/load.hpp"
#include "cadenza/program/step_plan.hpp"

namespace cadenza::app::test_decisions {
namespace {

using config::Overlap;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr const char* kExperiment =
    "model: {layers: 8, d_model: 256, heads: 8, kv_heads: 4, ffn: 704, vocab: 512}\n"
    "data:\n"
    "  source: synthetic\n"
    "  lengths: {distribution: list, values: [4096, 1024, 512, 2560, 512, 3584, 3072, 1024]}\n"
    "batch: {tokens: 32768, microbatch: 4096}\n"
    "parallel: {data: 8}\n";

config::Experiment experiment(const std::vector<std::string>& overrides = {}) {
  return config::parse_experiment(kExperiment, "e.yaml", overrides);
}

config::Machine machine(double bytes_per_second) {
  config::Machine m;
  m.links.inside.bytes_per_second = bytes_per_second;
  return m;
}

Decisions decide_for(const config::Experiment& e, const config::Machine& m) {
  const auto corpus = data::open_corpus(e.data, e.model.vocab, e.seed);
  return decide(e, data::Packer(*corpus, e), m);
}

TEST(Decisions, PingPongWhereMessagesCanBeHidden) {
  EXPECT_EQ(decide_for(experiment(), machine(1e8)).overlap, Overlap::ping_pong);
  EXPECT_EQ(decide_for(experiment({"run.recompute=layer"}), machine(1e8)).overlap,
            Overlap::ping_pong);
  EXPECT_EQ(decide_for(experiment({"attention.block=16"}), machine(1e30)).overlap, Overlap::none);
}

TEST(Decisions, SayWhyAndForWhichRates) {
  EXPECT_THAT(decide_for(experiment(), machine(1e8)).lines,
              ElementsAre(StartsWith("overlap: ping_pong (auto: predicted "),
                          StartsWith("tolerance, first tick: ")));
  for (const std::string& line : decide_for(experiment(), machine(1e8)).lines) {
    EXPECT_THAT(line, HasSubstr("assumed 50 GFLOP/s, 5 GB/s"));
  }
}

TEST(Decisions, WhatIsGivenStays) {
  const Decisions given =
      decide_for(experiment({"attention.overlap=none", "attention.tolerance=0.1"}), machine(1e8));
  EXPECT_EQ(given.overlap, Overlap::none);
  EXPECT_THAT(given.lines, IsEmpty());
  EXPECT_EQ(decide_for(experiment({"attention.overlap=ping_pong"}), machine(1e30)).overlap,
            Overlap::ping_pong);
}

TEST(Decisions, NoneWherePingPongIsNotValidOrHasNothingToHide) {
  const auto line = [](const std::vector<std::string>& overrides) {
    const Decisions decisions = decide_for(experiment(overrides), machine(1e8));
    EXPECT_EQ(decisions.overlap, Overlap::none);
    return decisions.lines.front();
  };
  EXPECT_THAT(line({"parallel.data=1"}), HasSubstr("stays with its tokens"));
  EXPECT_THAT(line({"attention.kind=prefix", "attention.prefix=8"}),
              HasSubstr("does not go with attention.kind prefix"));
}

TEST(Decisions, OnlyCadHasSomethingToDecide) {
  for (const char* placement : {"colocated", "zigzag", "striped", "ulysses", "all_gather"}) {
    std::vector<std::string> overrides = {fmt::format("attention.placement={}", placement)};
    if (std::string(placement) != "colocated") {
      overrides.insert(overrides.end(), {"parallel.data=2", "parallel.context=4"});
    }
    const Decisions decisions = decide_for(experiment(overrides), machine(1e8));
    EXPECT_EQ(decisions.overlap, Overlap::none);
    EXPECT_THAT(decisions.lines, IsEmpty());
  }
}

TEST(Decisions, KnowNothingOfPlantedFaults) {
  const std::vector<std::string> planted = {
      "cluster.slow_ranks=[[3, 0.2]]", "cluster.slow_links=[[0, 1, 0.01]]",
      "cluster.faults=[{rank: 1, speed: 0.1}]", "cluster.jitter=0.5"};
  const config::Machine m = machine(1e8);
  EXPECT_EQ(decide_for(experiment(planted), m).lines, decide_for(experiment(), m).lines);
  const auto ticks = [&](const config::Experiment& e) {
    const auto corpus = data::open_corpus(e.data, e.model.vocab, e.seed);
    return plan::hash(program::plan_ticks(e, data::Packer(*corpus, e).batch(1), m).front().forward);
  };
  EXPECT_EQ(ticks(experiment(planted)), ticks(experiment()));
}

TEST(Decisions, AreThoseOfTheFirstStepAndAlwaysTheSame) {
  const config::Machine m = machine(1e8);
  EXPECT_EQ(decide_for(experiment(), m).lines, decide_for(experiment(), m).lines);
}

TEST(Decisions, ARunHasAnOverlapThatIsDecided) {
  const config::Experiment e = experiment();
  const auto corpus = data::open_corpus(e.data, e.model.vocab, e.seed);
  const Choice choice = search_layout(e, *corpus, machine(1e8));
  EXPECT_EQ(choice.experiment.attention.overlap, Overlap::ping_pong);
  EXPECT_EQ(choice.decisions.size(), 2u);
  EXPECT_EQ(choice.explanation, "");
}

}  // namespace
}  // namespace cadenza::app::test_decisions
