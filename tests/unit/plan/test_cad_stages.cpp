// SPDX-License-Identifier: Apache-2.0
// The stages of CAD's plans: keys that are handed on, work at home that hides messages, and shares
// of attention beside a layer's other work.
#include <gmock/gmock.h>

#include <map>
#include <numeric>
#include <set>

#include "cadenza/base/at.hpp"
#include "cadenza/plan/predict.hpp"
#include "cadenza/plan/validate.hpp"
#include "cases.hpp"

namespace cadenza::plan::test_cad_stages {
namespace {

using test::workload;
using ::testing::IsEmpty;

config::Attention options(std::int64_t block, double tolerance) {
  config::Attention attention;
  attention.block = block;
  attention.tolerance = tolerance;
  return attention;
}

void expect_valid(const Plan& plan) {
  EXPECT_THAT(violations(plan), IsEmpty());
  EXPECT_THAT(mirror_violations(plan, mirror(plan)), IsEmpty());
}

double cost_of(const Plan& plan, Rank server, std::size_t stage) {
  double sum = 0;
  for (const PlacedTask& placed : plan.stages[stage].tasks) {
    if (placed.server == server) sum += placed.cost;
  }
  return sum;
}

/// @param ranks  of a document whose keys come stage by stage: round a ring or, to few ranks, from
///               their homes
void expect_keys_in_stages(int ranks) {
  const std::int64_t length = 1024 * ranks;
  const Workload w =
      test::group_workload(test::experiment(config::PlacementKind::cad, ranks), {{length}});
  const Plan plan = cad(w, options(128, 0.1));
  expect_valid(plan);
  ASSERT_EQ(plan.stages.size(), at(ranks));
  for (std::size_t stage = 1; stage < plan.stages.size(); ++stage) {
    std::map<Rank, std::int64_t> sent, received;
    for (const Move& move : plan.stages[stage].moves) {
      EXPECT_TRUE(move.what == Tensor::k || move.what == Tensor::v);
      sent[move.from] += move.tokens.size();
      received[move.to] += move.tokens.size();
    }
    for (const auto& counts : {sent, received}) {
      for (const auto& [rank, tokens] : counts) EXPECT_LE(tokens, 2 * length / ranks) << rank;
    }
    for (Rank rank = 0; rank < ranks; ++rank) EXPECT_GT(cost_of(plan, rank, stage), 0);
  }
  if (ranks > 8) {
    EXPECT_EQ(test::total_bytes(plan), test::total_bytes(ring(w)));
    return;
  }
  EXPECT_EQ(test::total_bytes(plan), test::total_bytes(all_gather(w, config::Gather::seen)));
  for (const Stage& stage : plan.stages) {
    for (const Move& move : stage.moves) {
      EXPECT_TRUE(std::ranges::any_of(w.homes, [&](const Home& home) {
        return home.rank == move.from && home.tokens.contains(move.tokens);
      }));
    }
  }
}

TEST(CadStages, KeysOfASharedDocumentGoRoundARing) {
  expect_keys_in_stages(16);
}

TEST(CadStages, FewRanksGetKeysFromTheirHomes) {
  expect_keys_in_stages(4);
}

TEST(CadStages, KeysSkipThoseThatDoNotReadThem) {
  config::Experiment e = test::experiment(config::PlacementKind::cad, 4);
  e.attention.kind = config::AttentionKind::window;
  e.attention.window = 64;
  const Workload w = test::group_workload(e, {{4096}});
  const Plan plan = cad(w, options(128, 1));
  expect_valid(plan);
  EXPECT_EQ(test::total_bytes(plan), test::total_bytes(all_gather(w, config::Gather::seen)));
  EXPECT_LT(test::total_bytes(plan), 0.7 * test::total_bytes(ring(w)));
}

/// Nodes of `per_node` ranks, on which a stage with tasks costs at least `launch_seconds`.
cost::Pool nodes_of(int per_node, double launch_seconds) {
  config::Machine machine;
  machine.ranks_per_node = per_node;
  machine.attention.launch_seconds = launch_seconds;
  return {cost::Rates(machine, {}, 8), {}};
}

/// By stage: the ranks that send keys to another node of `per_node` ranks.
std::vector<std::set<Rank>> crossing(const Plan& plan, int per_node) {
  std::vector<std::set<Rank>> ranks;
  for (const Stage& stage : plan.stages) {
    std::set<Rank>& of_stage = ranks.emplace_back();
    for (const Move& move : stage.moves) {
      if (move.from / per_node != move.to / per_node) of_stage.insert(move.from);
    }
  }
  return ranks;
}

TEST(CadStages, KeysCrossNodesOnAllTheirRanksAtOnce) {
  const int ranks = 8, per_node = 4;
  const Workload w =
      test::group_workload(test::experiment(config::PlacementKind::cad, ranks), {{8192}});
  const Plan plan = cad(w, options(128, 0.1), nodes_of(per_node, 0));
  expect_valid(plan);
  const std::vector<std::set<Rank>> sent = crossing(plan, per_node);
  ASSERT_EQ(sent.size(), std::size_t{ranks});
  for (std::size_t stage = 0; stage < sent.size(); ++stage) {
    EXPECT_EQ(sent[stage].size(), stage == per_node ? std::size_t{ranks} : 0) << stage;
  }
  EXPECT_EQ(test::total_bytes(plan), test::total_bytes(ring(w, per_node)));
}

TEST(CadStages, InnerRingsLieOnNodesOfUnequalParts) {
  // Six ranks on nodes of four: of a ring of six, neighbours in pairs are on one node.
  const Workload w =
      test::group_workload(test::experiment(config::PlacementKind::cad, 6), {{6144}});
  const Plan plan = cad(w, options(128, 0.1), nodes_of(4, 0));
  expect_valid(plan);
  EXPECT_EQ(test::total_bytes(plan), test::total_bytes(ring(w, 2)));
}

TEST(CadStages, NodesGatherKeysWhereStagesAreCostly) {
  const int ranks = 8, per_node = 2, nodes = ranks / per_node;
  const Workload w =
      test::group_workload(test::experiment(config::PlacementKind::cad, ranks), {{8192}});
  const Plan rings = cad(w, options(128, 0.1), nodes_of(per_node, 0));
  const Plan plan = cad(w, options(128, 0.1), nodes_of(per_node, 1));
  expect_valid(plan);
  EXPECT_EQ(rings.stages.size(), std::size_t{ranks});
  ASSERT_EQ(plan.stages.size(), std::size_t{nodes + 1});
  EXPECT_EQ(test::total_bytes(plan), test::total_bytes(rings));
  const std::vector<std::set<Rank>> sent = crossing(plan, per_node);
  for (int stage = 0; stage <= nodes; ++stage) {
    const bool crosses = stage > 0 && stage < nodes;
    EXPECT_EQ(sent[at(stage)].size(), crosses ? std::size_t{ranks} : 0) << stage;
  }
  EXPECT_EQ(cad(w, options(128, 0.1), nodes_of(ranks, 1)).stages.size(), std::size_t{ranks})
      << "one node: a rank's memory is for the keys of some ranks, not of all";
}

TEST(CadStages, DistCAsRulesSendAllRowsStraight) {
  const Workload w =
      test::group_workload(test::experiment(config::PlacementKind::cad, 4), {{4096}});
  config::Attention attention = options(128, 0.1);
  attention.priority = config::Priority::paper;
  EXPECT_EQ(cad(w, attention).stages.size(), 2u);
}

TEST(CadStages, WorkAtHomeRunsBeforeAndAfterThatOfOthers) {
  const Workload w = workload({{2048}, std::vector<std::int64_t>(16, 128)});
  const Plan plan = cad(w, options(64, 0.05));
  expect_valid(plan);
  ASSERT_EQ(plan.stages.size(), 3u);
  const double all = plan.cost_per_rank[1];
  EXPECT_GT(cost_of(plan, 1, 1), 0.6 * all) << "the long document's";
  EXPECT_GT(cost_of(plan, 1, 0), 0.05 * all) << "while its rows travel";
  EXPECT_GT(cost_of(plan, 1, 2), 0.02 * all) << "while its results travel";
  EXPECT_EQ(cost_of(plan, 0, 0), plan.cost_per_rank[0]) << "nobody else works there";
}

TEST(CadStages, ALongTaskAtHomeIsCut) {
  const Workload w = workload({{4096}, {1024}});
  const Plan plan = cad(w, options(64, 0.05));
  expect_valid(plan);
  ASSERT_EQ(plan.stages.size(), 3u);
  EXPECT_GT(cost_of(plan, 1, 0), 0);
  EXPECT_GT(cost_of(plan, 1, 1), 0);
}

/// Results of a document that others share go on their way when they are there, not with those of
/// the ring's last step.
TEST(CadStages, ResultsOfGuestsDoNotWaitForTheRing) {
  config::Experiment e = test::experiment(config::PlacementKind::cad, 4);
  const Workload w = test::group_workload(e, {{8192}, {512, 512, 512, 512}});
  const Plan plan = cad(w, options(64, 0.05));
  expect_valid(plan);
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const Plan& of = pass == Pass::forward ? plan : mirror(plan);
    const std::size_t last = of.stages.size() - 1;
    ASSERT_THAT(of.stages[last].moves, ::testing::Not(IsEmpty()));
    EXPECT_LT(last_tasks_of_results(of, last, pass) + 1, static_cast<int>(last));
  }
}

TEST(CadStages, WhoHasFewerTokensAttendsMore) {
  // Rank 0 has four times the tokens of rank 1, and as many pairs.
  const Workload w = workload({std::vector<std::int64_t>(64, 128), {1024, 128, 128, 768}});
  cost::Pool pool = cost::nominal_pool(w.shape.head_dim);
  const config::Attention attention = options(32, 0.02);
  const auto seconds = [&](const Plan& plan, Rank rank) {
    return 3.5 * plan.cost_per_rank[at(rank)] / 5e10;  // at the nominal rate
  };
  const Plan equal = cad(w, attention, pool);
  EXPECT_NEAR(seconds(equal, 0), seconds(equal, 1), 0.05 * seconds(equal, 0));
  pool.forward_seconds = 2e-7;
  pool.backward_seconds = 4e-7;
  const Plan plan = cad(w, attention, pool);
  expect_valid(plan);
  const auto layer = [&](Rank rank) {
    return seconds(plan, rank) + 6e-7 * (rank == 0 ? 64 * 128 : 2048);
  };
  EXPECT_GT(seconds(plan, 1), 1.2 * seconds(plan, 0));
  EXPECT_NEAR(layer(0), layer(1), 0.03 * layer(0));
  // More than it could get: it attends all.
  pool.forward_seconds = 1;
  EXPECT_EQ(cad(w, attention, pool).cost_per_rank[0], 0);
}

/// Context groups with homes by degree.
Workload groups_by_degree(test::Draw& draw) {
  config::Experiment e = test::experiment(config::PlacementKind::cad, draw.between(2, 6));
  e.attention.sharding = config::Sharding::dynamic;
  e.batch.longest = draw.of(std::vector<double>{1, 1.25, 3});
  if (draw.between(0, 2) == 0) {
    e.attention.kind = config::AttentionKind::window;
    e.attention.window = draw.between(1, 600);
  }
  std::vector<std::vector<std::int64_t>> lengths(static_cast<std::size_t>(draw.between(1, 4)));
  for (std::vector<std::int64_t>& group : lengths) {
    for (std::int64_t n = draw.between(1, 6); n > 0; --n) {
      group.push_back(draw.of(std::vector<std::int64_t>{1, 40, 300, draw.between(1, 2000)}));
    }
  }
  return test::group_workload(e, lengths);
}

TEST(CadStages, AnyOtherWorkGivesValidPlans) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    test::Draw draw(seed);
    Workload w = test::random_workload(draw, 16);
    if (draw.between(0, 1) == 0) w = groups_by_degree(draw);
    if (draw.between(0, 1) == 0) {  // mixed
      w.servers.resize(static_cast<std::size_t>(w.ranks));
      std::iota(w.servers.begin(), w.servers.end(), 0);
    }
    if (draw.between(0, 1) == 0) {
      for (Rank rank = 0; rank < w.ranks; ++rank) w.capacities.push_back(draw.between(20, 200));
    }
    cost::Pool pool =
        nodes_of(static_cast<int>(draw.between(1, 4)), draw.of(std::vector<double>{0, 1e-4, 1}));
    pool.forward_seconds = draw.of(std::vector<double>{1e-9, 1e-7, 1e-5, 1e-3});
    const config::Attention attention =
        options(draw.between(1, 64), draw.of(std::vector<double>{0, 0.1, 4, 1e4}));
    expect_valid(cad(w, attention, pool));
    for (const Workload& half : halves(w)) expect_valid(cad(half, attention, pool));
  }
}

}  // namespace
}  // namespace cadenza::plan::test_cad_stages
