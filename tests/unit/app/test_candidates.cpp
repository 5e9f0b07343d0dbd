// SPDX-License-Identifier: Apache-2.0
// What placement auto chooses from, and that it keeps what is given.
#include "app/planner/search/candidates.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <optional>
#include <set>

#include "unit/app/search_cases.hpp"

namespace cadenza::app::test_candidates {
namespace {

using search_cases::choose;
using search_cases::experiment;
using search_cases::machine;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Candidates, WhatIsGivenIsKept) {
  const config::Experiment e =
      experiment({"parallel.data=4", "parallel.tensor=2", "run.recompute=mlp",
                  "parallel.shard=optimizer", "attention.overlap=none", "parallel.context=auto"});
  std::size_t contexts = 0;
  for (const Candidate& arrangement : arrangements(e)) {
    EXPECT_EQ(arrangement.parallel.tensor, 2);
    EXPECT_EQ(arrangement.parallel.trainers(), 8);
    EXPECT_EQ(arrangement.attention.overlap, config::Overlap::none);
    contexts += arrangement.parallel.context > 1;
    const std::vector<Candidate> all = variants(e, arrangement);
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].recompute, config::Recompute::mlp);
    EXPECT_EQ(all[0].parallel.shard, config::Shard::optimizer);
  }
  EXPECT_GT(contexts, 0u);
}

TEST(Candidates, ParametersAreShardedWhereThatIsGiven) {
  const config::Experiment e = experiment({"parallel.shard=parameters"});
  for (const Candidate& arrangement : arrangements(e)) {
    for (const Candidate& one : variants(e, arrangement)) {
      EXPECT_EQ(one.parallel.shard, config::Shard::parameters);
    }
  }
  const Choice choice = choose(e, machine());
  EXPECT_EQ(choice.experiment.parallel.shard, config::Shard::parameters);
  EXPECT_THAT(choice.explanation, HasSubstr("shard parameters"));
}

TEST(Candidates, PipelinesNeedNotDivideTheLayers) {
  std::set<std::int64_t> pipelines, of_cad;
  for (const Candidate& one : arrangements(experiment({"model.layers=7"}))) {
    (disaggregates(one) ? of_cad : pipelines).insert(one.parallel.pipeline);
  }
  EXPECT_THAT(pipelines, ElementsAre(1, 2, 4));
  EXPECT_THAT(of_cad, ElementsAre(1, 2, 4));  // each stage with a pool of its own
}

TEST(Candidates, WhatIsLeftOpenIsTried) {
  const config::Experiment e = experiment();
  std::size_t pipelines = 0, in_turns = 0, most = 0;
  for (const Candidate& arrangement : arrangements(e)) {
    pipelines += arrangement.parallel.pipeline > 1;
    in_turns += arrangement.attention.overlap == config::Overlap::ping_pong;
    most = std::max(most, variants(e, arrangement).size());
  }
  EXPECT_GT(pipelines, 0u);
  EXPECT_GT(in_turns, 0u);
  EXPECT_EQ(most, 8u);  // four ways to recompute, the optimizer whole or in shards
}

TEST(Candidates, CadIsTriedWithDegreesWhereTheShardingIsOpen) {
  const auto by_degree = [](const config::Experiment& e) {
    std::size_t found = 0;
    for (const Candidate& one : arrangements(e)) {
      if (disaggregates(one)) found += one.of(e).attention.shares() == config::Shares::dynamic;
    }
    return found;
  };
  EXPECT_GT(by_degree(experiment()), 0u);
  EXPECT_EQ(by_degree(experiment({"attention.sharding=zigzag"})), 0u);
}

TEST(Candidates, RowsAreFewerWhereDocumentsAreSharedByCost) {
  std::size_t found = 0;
  const config::Experiment e = experiment();
  for (const Candidate& one : arrangements(e)) {
    const std::optional<Candidate> fewer = with_fewer_rows(e, one);
    EXPECT_EQ(fewer.has_value(), one.parallel.context > 1 && one.of(e).attention.shares_by_cost());
    if (!fewer) continue;
    ++found;
    EXPECT_LT(fewer->of(e).batch.longest, one.of(e).batch.longest);
    EXPECT_THAT(placement_text(*fewer), HasSubstr(", longest 1.1"));
    EXPECT_THAT(settings(*fewer), Contains("--set batch.longest=1.1"));
  }
  EXPECT_GT(found, 0u);
  const config::Experiment given = experiment({"batch.longest=1.25"});
  for (const Candidate& one : arrangements(given)) EXPECT_FALSE(with_fewer_rows(given, one));
}

TEST(Candidates, StagesAreTriedInGroupsOfLayers) {
  const auto chunks_of = [](const config::Experiment& e) {
    std::set<std::int64_t> found;
    for (const Candidate& one : arrangements(e)) {
      if (one.parallel.pipeline == 1) {
        EXPECT_EQ(one.parallel.chunks, 1);
        continue;
      }
      EXPECT_EQ(4 % (one.parallel.pipeline * one.parallel.chunks), 0);
      found.insert(one.parallel.chunks);
      if (one.parallel.chunks == 1) continue;
      EXPECT_THAT(settings(one),
                  Contains(fmt::format("--set parallel.chunks={}", one.parallel.chunks)));
      EXPECT_THAT(layout_text(one), HasSubstr("pipeline 2 (2 chunks) x"));
    }
    return found;
  };
  EXPECT_THAT(chunks_of(experiment()), ElementsAre(1, 2));
  EXPECT_THAT(chunks_of(experiment({"parallel.chunks=auto"})), ElementsAre(1, 2));
  EXPECT_THAT(
      chunks_of(experiment({"parallel.data=4", "parallel.pipeline=2", "parallel.chunks=2"})),
      ElementsAre(2));
  EXPECT_THAT(chunks_of(experiment({"parallel.chunks=1"})), ElementsAre(1));
}

TEST(Candidates, DedicatedServersAreSomeOfTheDevices) {
  const config::Experiment e = experiment({"parallel.tensor=2"});
  std::set<std::int64_t> counts;
  std::size_t mixed = 0;
  for (const Candidate& one : served_arrangements(e)) {
    EXPECT_EQ(one.of(e).ranks(), 16);
    EXPECT_TRUE(disaggregates(one));
    EXPECT_FALSE(one.attention.open.servers || one.attention.open.mixed);
    mixed += one.attention.mixed;
    counts.insert(one.attention.servers);
    EXPECT_THAT(settings(one),
                Contains(fmt::format("--set attention.servers={}", one.attention.servers)));
  }
  EXPECT_THAT(counts, ElementsAre(2, 4, 6, 8, 10, 12, 14));
  EXPECT_EQ(mixed, served_arrangements(e).size() / 2);
  for (const Candidate& one : arrangements(e)) EXPECT_EQ(one.attention.servers, 0);
}

TEST(Candidates, DedicatedServersThatAreGivenAreKept) {
  EXPECT_TRUE(served_arrangements(experiment({"attention.servers=in_place"})).empty());
  const config::Experiment e = experiment({"attention.servers=2", "parallel.tensor=1"});
  EXPECT_TRUE(served_arrangements(e).empty());
  const std::vector<Candidate> all = arrangements(e);
  ASSERT_FALSE(all.empty());
  for (const Candidate& one : all) EXPECT_EQ(one.of(e).ranks(), 8 + 2);
  const config::Experiment mixed = experiment({"attention.mixed=true"});
  EXPECT_TRUE(arrangements(mixed).empty());
  ASSERT_FALSE(served_arrangements(mixed).empty());
  for (const Candidate& one : served_arrangements(mixed)) EXPECT_TRUE(one.attention.mixed);
}

TEST(Candidates, RanksThatTheBatchDoesNotFeedAreSharedOutOtherwise) {
  const config::Experiment e = experiment({"parallel.data=32"});  // of 8 microbatches
  const std::vector<Candidate> all = arrangements(e);
  ASSERT_FALSE(all.empty());
  for (const Candidate& one : all) EXPECT_LE(one.parallel.data, 8);
}

}  // namespace
}  // namespace cadenza::app::test_candidates
