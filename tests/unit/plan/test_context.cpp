// SPDX-License-Identifier: Apache-2.0
// Context placements: published areas, balance and bytes; any documents, heads, groups and halves
// against the validator and against carrying plans out.
#include <gmock/gmock.h>

#include "cadenza/base/error.hpp"
#include "cadenza/plan/validate.hpp"
#include "cases.hpp"
#include "oracle.hpp"
#include "unit/sanitized.hpp"

namespace cadenza::plan::test_context {
namespace {

using config::PlacementKind;
using test::Draw;
using test::experiment;
using test::group_workload;

constexpr int kRanks = 4;
constexpr std::int64_t kEach = 32;  // tokens per rank

Plan planned(const config::Experiment& e, const std::vector<std::vector<std::int64_t>>& groups) {
  const Plan plan = make_plan(e.attention, group_workload(e, groups));
  EXPECT_THAT(violations(plan), ::testing::IsEmpty());
  EXPECT_THAT(mirror_violations(plan, mirror(plan)), ::testing::IsEmpty());
  return plan;
}

config::Experiment contiguous(PlacementKind placement) {
  config::Experiment e = experiment(placement, kRanks);
  e.attention.sharding = config::Sharding::contiguous;
  return e;
}

/// Allowed pairs by [rank][stage], of one head.
std::vector<std::vector<std::int64_t>> areas(const Plan& plan) {
  std::vector<std::vector<std::int64_t>> work(static_cast<std::size_t>(plan.workload.ranks),
                                              std::vector<std::int64_t>(plan.stages.size(), 0));
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
    for (const PlacedTask& placed : plan.stages[stage].tasks) {
      const Task& t = placed.task;
      work[static_cast<std::size_t>(placed.server)][stage] +=
          allowed_pairs(t) * t.heads.size() / plan.workload.shape.heads;
    }
  }
  return work;
}

TEST(Context, AreasPerRankAndStep) {
  const auto of = [](PlacementKind placement) {
    return areas(planned(experiment(placement, kRanks), {{kRanks * kEach}}));
  };
  const auto ring = of(PlacementKind::ring);
  EXPECT_THAT(ring[3], ::testing::ElementsAre(528, 1024, 1024, 1024));
  EXPECT_THAT(ring[0], ::testing::ElementsAre(528, 0, 0, 0));
  EXPECT_THAT(of(PlacementKind::zigzag),
              ::testing::Each(::testing::ElementsAre(528, 512, 512, 512)));
  const auto striped = of(PlacementKind::striped);
  EXPECT_THAT(striped[0], ::testing::ElementsAre(528, 496, 496, 496));
  EXPECT_THAT(striped[1], ::testing::ElementsAre(528, 528, 496, 496));
  EXPECT_THAT(striped[3], ::testing::ElementsAre(528, 528, 528, 528));
}

TEST(Context, ImbalanceOfRanks) {
  const auto of = [](PlacementKind placement) {
    return imbalance(planned(experiment(placement, kRanks), {{kRanks * kEach}}));
  };
  EXPECT_NEAR(of(PlacementKind::ring), 1.7442, 5e-5);
  EXPECT_NEAR(of(PlacementKind::zigzag), 1.0, 1e-12);
  EXPECT_NEAR(of(PlacementKind::striped), 1.0233, 5e-5);
  EXPECT_NEAR(of(PlacementKind::ulysses), 1.0, 1e-12);
  EXPECT_NEAR(of(PlacementKind::all_gather), 1.0, 1e-12);  // 2 chunks per rank
  EXPECT_NEAR(imbalance(planned(contiguous(PlacementKind::all_gather), {{kRanks * kEach}})), 1.7442,
              5e-5);
}

/// Bytes that every rank sends and receives of K and V, and of Q and O.
struct Bytes {
  std::vector<std::int64_t> keys_sent = std::vector<std::int64_t>(kRanks, 0);
  std::vector<std::int64_t> keys_received = std::vector<std::int64_t>(kRanks, 0);
  std::vector<std::int64_t> queries_sent = std::vector<std::int64_t>(kRanks, 0);
  explicit Bytes(const Plan& plan) {
    for (const Stage& stage : plan.stages) {
      for (const Move& m : stage.moves) {
        const auto from = static_cast<std::size_t>(m.from);
        if (is_key_side(m.what)) {
          keys_sent[from] += m.bytes;
          keys_received[static_cast<std::size_t>(m.to)] += m.bytes;
        } else if (m.what != Tensor::lse) {
          queries_sent[from] += m.bytes;
        }
      }
    }
  }
};

// heads 4, key-value heads 2, head_dim 8, 4 bytes: m is what a rank's K and V take.
constexpr std::int64_t kKeys = 2 * kEach * 2 * 8 * 4;
constexpr std::int64_t kQueries = kEach * 4 * 8 * 4;

/// Rank by rank, of so many tokens.
auto keys_of(std::vector<std::int64_t> tokens) {
  for (std::int64_t& count : tokens) count *= kKeys / kEach;
  return ::testing::ElementsAreArray(tokens);
}

// Keys end at the last rank that sees them. Chunks of zigzag orders have 16 tokens.
TEST(Context, BytesOfRingsAndTheGather) {
  const auto expect = [](PlacementKind placement, const std::vector<std::int64_t>& sent,
                         const std::vector<std::int64_t>& received, int inner_ring = 1) {
    config::Experiment e = experiment(placement, kRanks);
    e.attention.block = 8;
    e.attention.inner_ring = inner_ring;
    const Bytes bytes(planned(e, {{kRanks * kEach}}));
    EXPECT_THAT(bytes.keys_sent, keys_of(sent));
    EXPECT_THAT(bytes.keys_received, keys_of(received));
    EXPECT_THAT(bytes.queries_sent, ::testing::Each(0));
  };
  expect(PlacementKind::ring, {32, 64, 96, 0}, {0, 32, 64, 96});
  // Nobody but rank 0 sees the last chunk, its own.
  expect(PlacementKind::zigzag, {80, 80, 80, 96}, {96, 80, 80, 80});
  // Ranks of earlier stripes see all of a stripe but its last run.
  expect(PlacementKind::striped, {94, 95, 96, 93}, {93, 94, 95, 96});
  expect(PlacementKind::block_striped, {80, 88, 96, 72}, {72, 80, 88, 96});
  expect(PlacementKind::all_gather, {48, 64, 80, 96}, {96, 80, 64, 48});
  expect(PlacementKind::double_ring, {64, 80, 64, 80}, {96, 80, 64, 48}, 2);
  expect(PlacementKind::zigzag, {64, 80, 64, 80}, {96, 80, 64, 48}, 2);
}

TEST(Context, BytesOfHeadSplits) {
  // Every slice reads one key-value head of two: W/kv_heads = 2 times as many bytes as without
  // sharing.
  const Bytes shared(planned(experiment(PlacementKind::ulysses, kRanks), {{kRanks * kEach}}));
  EXPECT_THAT(shared.keys_sent, ::testing::Each(3 * kKeys / 4 * 2));
  EXPECT_THAT(shared.queries_sent, ::testing::Each(2 * 3 * kQueries / 4));
  const Bytes even(planned(experiment(PlacementKind::ulysses, kRanks, 8, 4), {{kRanks * kEach}}));
  EXPECT_THAT(even.keys_sent, ::testing::Each(3 * (2 * kKeys) / 4));
  EXPECT_THAT(even.queries_sent, ::testing::Each(2 * 3 * (2 * kQueries) / 4));
  config::Experiment e = experiment(PlacementKind::ulysses_ring, kRanks);
  e.attention.head_parallel = 2;
  // All-to-all inside pairs, then a ring of two with the keys of a pair, half of the heads. Of the
  // first pair's keys, the second sees the first chunk alone.
  const Bytes both(planned(e, {{kRanks * kEach}}));
  EXPECT_THAT(both.keys_sent, keys_of({32, 32, 48, 48}));
  EXPECT_THAT(both.queries_sent, ::testing::Each(2 * kQueries / 2));
}

TEST(Context, RingsHandOnWhatTheyGot) {
  const Plan plan = planned(experiment(PlacementKind::ring, kRanks), {{kRanks * kEach}});
  ASSERT_EQ(plan.stages.size(), 4U);
  for (std::size_t stage = 1; stage < plan.stages.size(); ++stage) {
    for (const Move& m : plan.stages[stage].moves) {
      EXPECT_EQ(m.to, (m.from + 1) % kRanks);
      EXPECT_EQ(m.tokens.begin / kEach, (m.to + kRanks - static_cast<int>(stage)) % kRanks);
    }
  }
}

/// Stages in which each of 6 ranks, in nodes of 3, sends to its own node, and to another one.
std::vector<std::pair<int, int>> hops_of_two_nodes(PlacementKind placement) {
  config::Experiment e = experiment(placement, 6);
  e.attention.block = 8;
  e.attention.inner_ring = 3;
  const Plan plan = planned(e, {{600}});
  std::vector<std::pair<int, int>> sent(6);
  for (const Stage& stage : plan.stages) {
    std::vector<char> inner(6, 0);
    std::vector<char> outer(6, 0);
    for (const Move& m : stage.moves) {
      (m.from / 3 == m.to / 3 ? inner : outer)[static_cast<std::size_t>(m.from)] = 1;
    }
    for (std::size_t rank = 0; rank < sent.size(); ++rank) {
      sent[rank].first += inner[rank];
      sent[rank].second += outer[rank];
    }
  }
  return sent;
}

TEST(Context, RingsCrossNodesOncePerNode) {
  for (const PlacementKind placement : {PlacementKind::double_ring, PlacementKind::zigzag,
                                        PlacementKind::striped, PlacementKind::block_striped}) {
    EXPECT_THAT(hops_of_two_nodes(placement), ::testing::Each(std::pair(2 * (3 - 1), 2 - 1)));
  }
}

TEST(Context, GradientsGoHomeAfterTheLastTask) {
  const Plan backward =
      mirror(planned(experiment(PlacementKind::ring, kRanks), {{kRanks * kEach}}));
  ASSERT_EQ(backward.stages.size(), 5U);
  for (std::size_t stage = 0; stage < backward.stages.size(); ++stage) {
    for (const Move& m : backward.stages[stage].moves) {
      if (m.what != Tensor::dk) continue;
      EXPECT_EQ(m.to, m.tokens.begin / kEach);  // to the owner
      EXPECT_EQ(m.from, m.to + static_cast<int>(stage) - 1);
    }
  }
}

TEST(Context, KeptInputsDoNotTravelAgain) {
  for (const PlacementKind placement : {PlacementKind::ring, PlacementKind::ulysses}) {
    config::Experiment e = experiment(placement, kRanks);
    e.attention.inputs = config::Inputs::keep;
    const Plan forward = planned(e, {{kRanks * kEach}});
    const Plan backward = mirror(forward);
    for (const Stage& stage : backward.stages) {
      for (const Move& m : stage.moves) {
        EXPECT_TRUE(m.what != Tensor::q && m.what != Tensor::k && m.what != Tensor::v);
      }
    }
    Plan forgetful = forward;
    forgetful.keeps_inputs = false;
    EXPECT_THAT(mirror_violations(forgetful, backward), ::testing::Not(::testing::IsEmpty()));
    EXPECT_THAT(mirror_violations(forward, mirror(forgetful)),
                ::testing::Not(::testing::IsEmpty()));
  }
}

TEST(Context, WhatDoesNotDivideIsRefused) {
  const auto refused = [](const config::Experiment& e, const std::string& text) {
    try {
      make_plan(e.attention, group_workload(e, {{100}}));
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_THAT(error.what(), ::testing::HasSubstr(text));
    }
  };
  refused(experiment(PlacementKind::ulysses, 3), "parallel.context: found 3");
  config::Experiment double_ring = experiment(PlacementKind::double_ring, 4);
  double_ring.attention.inner_ring = 3;
  refused(double_ring, "attention.inner_ring: found 3");
  config::Experiment split = experiment(PlacementKind::ulysses_ring, 8);
  split.attention.head_parallel = 8;
  refused(split, "attention.head_parallel: found 8");
  refused(experiment(PlacementKind::automatic, 1), "attention.placement");
}

/// Any experiment that placements accept.
config::Experiment random_experiment(Draw& draw) {
  const std::vector<PlacementKind> placements = {PlacementKind::all_gather,
                                                 PlacementKind::ring,
                                                 PlacementKind::zigzag,
                                                 PlacementKind::striped,
                                                 PlacementKind::block_striped,
                                                 PlacementKind::ulysses,
                                                 PlacementKind::double_ring,
                                                 PlacementKind::ulysses_ring,
                                                 PlacementKind::colocated,
                                                 PlacementKind::dynamic,
                                                 PlacementKind::cad};
  const PlacementKind placement = draw.of(placements);
  const std::int64_t context = draw.between(1, 8);
  std::vector<std::int64_t> kv_heads = {1, 2, 3};
  const std::int64_t kv = draw.of(kv_heads);
  std::int64_t heads = kv * draw.between(1, 3);
  std::int64_t slices = 1;
  if (placement == PlacementKind::ulysses) slices = context;
  if (placement == PlacementKind::ulysses_ring) {
    slices = context % 2 == 0 ? 2 : context;
  }
  if (heads % slices != 0) heads *= slices;
  config::Experiment e = experiment(placement, context, heads, kv);
  e.attention.head_parallel = slices;
  e.attention.inner_ring = context % 2 == 0 ? context / 2 : 1;
  e.attention.block = draw.between(1, 20);
  e.attention.sharding = draw.any<config::Sharding>();
  e.batch.longest = draw.of(std::vector<double>{1, 1.25, 3});
  e.attention.shard_unit = draw.of(std::vector<config::ShardUnit>{
      config::ShardUnit::document, config::ShardUnit::sequence, config::ShardUnit::predicted});
  if (draw.uniform() < 0.5) e.attention.inputs = config::Inputs::keep;
  if (draw.uniform() < 0.5) e.attention.gather = config::Gather::all;
  return e;
}

void check_random(std::uint64_t seed, std::int64_t longest, bool carried_out) {
  Draw draw(seed);
  const config::Experiment e = random_experiment(draw);
  std::vector<std::vector<std::int64_t>> groups(static_cast<std::size_t>(draw.between(1, 3)));
  for (auto& lengths : groups) {
    for (std::int64_t n = draw.between(0, 4); n > 0; --n) {
      lengths.push_back(draw.uniform() < 0.3 ? draw.between(1, 3) : draw.between(1, longest));
    }
  }
  const Workload whole = group_workload(e, groups);
  std::vector<Workload> workloads = {whole};
  if (whole.order.natural()) {
    for (const Workload& half : halves(whole)) workloads.push_back(half);
  }
  for (const Workload& workload : workloads) {
    const Plan plan = make_plan(e.attention, workload);
    const Plan backward = mirror(plan);
    EXPECT_THAT(violations(plan), ::testing::IsEmpty()) << "seed " << seed;
    EXPECT_THAT(mirror_violations(plan, backward), ::testing::IsEmpty()) << "seed " << seed;
    if (carried_out) {
      EXPECT_EQ(test::carry_out(plan), "") << "seed " << seed;
    }
  }
}

TEST(Context, AnyPlanIsValid) {
  for (std::uint64_t seed = 0; seed < (cadenza::testing::kSanitized ? 100 : 400); ++seed) {
    check_random(seed, 600, false);
  };
}

TEST(Context, AnyPlanComputesEveryPairOnce) {
  for (std::uint64_t seed = 1000; seed < (cadenza::testing::kSanitized ? 1040 : 1200); ++seed) {
    check_random(seed, 30, true);
  };
}

}  // namespace
}  // namespace cadenza::plan::test_context
