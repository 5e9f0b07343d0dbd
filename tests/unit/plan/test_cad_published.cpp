// SPDX-License-Identifier: Apache-2.0
// CAD with the switches of the paper and of its public code, against published plans and numbers.
#include <gmock/gmock.h>

#include <map>

#include "cadenza/plan/validate.hpp"
#include "cases.hpp"
#include "pretrain_lengths.hpp"

namespace cadenza::plan::test_cad_published {
namespace {

using config::Bound;
using config::Priority;

constexpr AttentionShape kShape8B{32, 8, 128, 2, 4};
constexpr AttentionShape kShape34B{64, 8, 128, 2, 4};

/// Documents one after another, `budget` tokens on every rank. A document that spans ranks is dealt
/// from both ends: a rank that takes c tokens takes c / 2 of what is left of its head and the rest
/// of what is left of its tail.
Workload sequential(const std::vector<std::int64_t>& lengths, std::int64_t budget,
                    AttentionShape shape) {
  Workload w;
  w.shape = shape;
  std::int64_t used = 0;
  for (std::int64_t length : lengths) {
    const int document = static_cast<int>(w.lengths.size());
    w.lengths.push_back(length);
    Range rest{0, length};
    while (!rest.empty()) {
      const Rank rank = static_cast<Rank>(used / budget);
      const std::int64_t c = std::min(rest.size(), budget - used % budget);
      if (c == rest.size()) {
        w.homes.push_back({rank, document, rest});
        rest = {};
      } else {
        const Range head{rest.begin, rest.begin + c / 2};
        const Range tail{rest.end - (c - c / 2), rest.end};
        if (!head.empty()) w.homes.push_back({rank, document, head});
        w.homes.push_back({rank, document, tail});
        rest = {head.end, tail.begin};
      }
      used += c;
    }
  }
  w.ranks = static_cast<int>((used + budget - 1) / budget);
  for (Rank rank = 0; rank < w.ranks; ++rank) w.servers.push_back(rank);
  return w;
}

config::Attention options(Bound bound, Priority priority, std::int64_t block, double tolerance) {
  config::Attention attention;
  attention.bound = bound;
  attention.priority = priority;
  attention.block = block;
  attention.tolerance = tolerance;
  attention.split_keys = false;
  return attention;
}

std::vector<std::int64_t> loads(const Plan& plan) {
  const AttentionShape& shape = plan.workload.shape;
  std::vector<std::int64_t> pairs;
  for (double cost : plan.cost_per_rank) {
    pairs.push_back(static_cast<std::int64_t>(cost / (4.0 * shape.head_dim * shape.heads)));
  }
  return pairs;
}

using Shard = std::pair<std::int64_t, std::int64_t>;  // queries, keys

std::vector<Shard> shards(const Plan& plan, Rank server, int document) {
  std::vector<Shard> list;
  for (const Stage& stage : plan.stages) {
    for (const PlacedTask& p : stage.tasks) {
      if (p.server != server || p.task.document != document) continue;
      list.emplace_back(p.task.q.size(), p.task.k.end);
    }
  }
  return list;
}

TEST(PublicCode, ReproducesThePublishedPlan) {
  const Workload w = sequential({32768, 8192, 8192, 4096, 4096, 4096, 4096}, 16384, kShape8B);
  ASSERT_EQ(w.ranks, 4);
  EXPECT_THAT(loads(colocated(w)),
              ::testing::ElementsAre(268443648, 268443648, 67117056, 33562624));
  const Plan plan = cad(w, options(Bound::one_sided, Priority::public_code, 1, 0.0));
  EXPECT_THAT(violations(plan), ::testing::IsEmpty());
  EXPECT_THAT(loads(plan), ::testing::ElementsAre(159421185, 159421185, 159361791, 159362815));
  using ::testing::UnorderedElementsAre;
  EXPECT_THAT(shards(plan, 0, 0), UnorderedElementsAre(Shard{4865, 4865}, Shard{4865, 32768}));
  EXPECT_THAT(shards(plan, 1, 0), UnorderedElementsAre(Shard{4865, 13057}, Shard{4865, 24576}));
  EXPECT_THAT(shards(plan, 2, 0), UnorderedElementsAre(Shard{2815, 15872}, Shard{2815, 19711}));
  // On rank 3 the two shards from rank 1 touch: 512 that end at 16384, 512 that end at 16896.
  EXPECT_THAT(shards(plan, 3, 0),
              UnorderedElementsAre(Shard{3327, 8192}, Shard{3327, 27903}, Shard{1024, 16896}));
}

/// Batches of n / 2 sequences for n servers of 64K tokens each.
std::vector<Workload> batches(int servers, AttentionShape shape) {
  const std::int64_t tokens = servers * test::kPretrainSequence / 2;
  std::vector<Workload> list;
  std::vector<std::int64_t> lengths;
  std::int64_t sum = 0;
  for (std::int64_t length : test::kPretrainLengths) {
    lengths.push_back(length);
    sum += length;
    if (sum < tokens) continue;
    list.push_back(sequential(lengths, test::kPretrainSequence / 2, shape));
    lengths.clear();
    sum = 0;
  }
  return list;
}

double mean_imbalance(const std::vector<Workload>& list, const config::Attention& attention) {
  double sum = 0;
  for (const Workload& w : list) sum += imbalance(cad(w, attention));
  return sum / static_cast<double>(list.size());
}

TEST(PublicCode, BoundsDeficitsAlone) {
  const std::vector<Workload> list = batches(64, kShape34B);
  ASSERT_EQ(list.size(), 2U);
  const auto mean = [&](Bound bound, double tolerance) {
    return mean_imbalance(list, options(bound, Priority::public_code, 1, tolerance));
  };
  EXPECT_NEAR(mean(Bound::one_sided, 0.05), 1.085, 0.03);
  EXPECT_NEAR(mean(Bound::one_sided, 0.15), 1.42, 0.12);
  EXPECT_LE(mean(Bound::two_sided, 0.05), 1.05 + 1e-3);
  EXPECT_LE(mean(Bound::two_sided, 0.15), 1.15 + 1e-3);
  double colocated_mean = 0;
  for (const Workload& w : list) colocated_mean += imbalance(colocated(w)) / 2;
  EXPECT_NEAR(colocated_mean, 2.25, 0.45);
}

TEST(PublicCode, BalancesWithoutTolerance) {
  for (int servers : {8, 16, 32, 64}) {
    for (Priority priority : {Priority::public_code, Priority::paper, Priority::resident}) {
      for (Bound bound : {Bound::one_sided, Bound::two_sided}) {
        const Workload w = batches(servers, kShape8B).front();
        EXPECT_LE(imbalance(cad(w, options(bound, priority, 1, 0.0))), 1.001) << servers;
        EXPECT_LE(imbalance(cad(w, options(bound, priority, 128, 0.0))), 1.03) << servers;
      }
    }
  }
}

TEST(PublicCode, VolumeFallsWithTolerance) {
  const std::vector<Workload> list = batches(32, kShape8B);
  std::vector<double> volume;
  for (double tolerance : {0.0, 0.05, 0.15, 0.3, 1.0}) {
    volume.push_back(0);
    for (const Workload& w : list) {
      volume.back() +=
          test::total_bytes(cad(w, options(Bound::one_sided, Priority::public_code, 1, tolerance)));
    }
  }
  EXPECT_TRUE(std::is_sorted(volume.rbegin(), volume.rend()));
  EXPECT_THAT(volume[1] / volume[0], ::testing::AllOf(::testing::Ge(0.80), ::testing::Le(0.95)));
  double unmoved = 0;  // documents that span ranks share keys
  for (const Workload& w : list) unmoved += test::total_bytes(colocated(w));
  EXPECT_EQ(volume.back(), unmoved);
}

TEST(Priorities, ResidentMovesTheFewestBytes) {
  std::map<Priority, double> bytes;
  for (const Workload& w : batches(16, kShape8B)) {
    for (Priority priority : {Priority::resident, Priority::paper, Priority::public_code}) {
      const Plan plan = cad(w, options(Bound::two_sided, priority, 128, 0.05));
      EXPECT_THAT(violations(plan), ::testing::IsEmpty());
      EXPECT_LE(imbalance(plan), 1.051);
      bytes[priority] += test::total_bytes(plan);
    }
  }
  EXPECT_LT(bytes[Priority::resident], bytes[Priority::paper]);
  EXPECT_LT(bytes[Priority::resident], bytes[Priority::public_code]);
  EXPECT_NE(bytes[Priority::paper], bytes[Priority::public_code]);
}

TEST(PublicCode, RandomPlansAreValid) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    test::Draw draw(seed);
    const std::int64_t block = draw.of<std::int64_t>({1, 16, 128});
    const Workload w = test::random_workload(draw, block);
    const auto attention =
        options(draw.of<Bound>({Bound::one_sided, Bound::two_sided}),
                draw.of<Priority>({Priority::paper, Priority::public_code, Priority::resident}),
                block, draw.of<double>({0.0, 0.1, 1.0}));
    const Plan plan = cad(w, attention);
    EXPECT_THAT(violations(plan), ::testing::IsEmpty());
    EXPECT_THAT(mirror_violations(plan, mirror(plan)), ::testing::IsEmpty());
    EXPECT_EQ(hash(plan), hash(cad(w, attention)));
  }
}

}  // namespace
}  // namespace cadenza::plan::test_cad_published
