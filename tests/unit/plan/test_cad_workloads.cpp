// SPDX-License-Identifier: Apache-2.0
// CAD on workloads that are not one whole document per home: halves of ping-pong, context groups,
// mixed pools, groups that idle.
#include <gmock/gmock.h>

#include <map>

#include "cadenza/plan/validate.hpp"
#include "cases.hpp"
#include "oracle.hpp"
#include "plan/cad/document_shard.hpp"
#include "plan/cad/items.hpp"

namespace cadenza::plan::test_cad_workloads {
namespace {

using test::Draw;
using test::heavy_tailed;
using test::workload;

config::Attention options(std::int64_t block, double tolerance, bool split_keys) {
  config::Attention attention;
  attention.block = block;
  attention.tolerance = tolerance;
  attention.split_keys = split_keys;
  return attention;
}

void expect_valid(const Plan& plan) {
  EXPECT_THAT(violations(plan), ::testing::IsEmpty());
  EXPECT_THAT(mirror_violations(plan, mirror(plan)), ::testing::IsEmpty());
}

std::int64_t total_pairs(const Workload& w) {
  std::int64_t pairs = 0;
  for (std::size_t d = 0; d < w.lengths.size(); ++d) pairs += w.mask.pairs(w.queries_of(d));
  return pairs;
}

/// Rows of one block of the longest document, over the mean load.
double one_block(const Workload& w, std::int64_t block) {
  const std::int64_t longest =
      w.lengths.empty() ? 0 : *std::max_element(w.lengths.begin(), w.lengths.end());
  const double mean = static_cast<double>(total_pairs(w)) / static_cast<double>(w.servers.size());
  return static_cast<double>(std::min(block, longest) * longest) / std::max(1.0, mean);
}

/// Groups of `context` ranks; every document in 2 x context chunks of which a rank has the r-th and
/// the r-th from the end, or contiguous.
Workload grouped(Draw& draw, int groups, int context, bool zigzag, std::int64_t longest) {
  Workload w;
  w.context = context;
  w.ranks = groups * context;
  w.shape = draw.of<AttentionShape>({{4, 2, 8, 4}, {8, 8, 16, 2}, {1, 1, 4, 4}});
  for (Rank rank = 0; rank < w.ranks; ++rank) w.servers.push_back(rank);
  std::map<Rank, std::vector<Home>> homes;
  for (int group = 0; group < groups; ++group) {
    for (std::int64_t n = draw.between(0, 4); n > 0; --n) {
      const int document = static_cast<int>(w.lengths.size());
      const std::int64_t length = draw.between(1, longest);
      w.lengths.push_back(length);
      const std::int64_t chunks = zigzag ? 2 * context : context;
      for (std::int64_t c = 0; c < chunks; ++c) {
        const Range tokens{c * length / chunks, (c + 1) * length / chunks};
        const std::int64_t r = c < context ? c : 2 * context - 1 - c;
        const Rank rank = static_cast<Rank>(group * context + r);
        if (!tokens.empty()) homes[rank].push_back({rank, document, tokens});
      }
    }
  }
  for (const auto& [rank, list] : homes) w.homes.insert(w.homes.end(), list.begin(), list.end());
  return w;
}

TEST(CadContext, RandomGroupsAreValidAndBalanced) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const Workload w = grouped(draw, static_cast<int>(draw.between(1, 3)),
                               static_cast<int>(draw.between(1, 4)), draw.between(0, 1) == 1, 900);
    const double tolerance = draw.of<double>({0.0, 0.1});
    const Plan plan = cad(w, options(16, tolerance, draw.between(0, 1) == 1));
    expect_valid(plan);
    EXPECT_LE(imbalance(plan), 1 + tolerance + one_block(w, 16) + 1e-9);
  }
}

TEST(CadContext, ComputesEveryPairOnceWhenCarriedOut) {
  for (std::uint64_t seed = 300; seed < 330; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    EXPECT_EQ(test::carry_out(cad(grouped(draw, 2, 2, true, 40), options(2, 0.0, true))), "");
  }
}

TEST(CadContext, BalancedZigzagMovesNoMoreThanItMust) {
  Draw draw(1);
  Workload w;
  w.context = 4;
  w.ranks = 4;
  w.servers = {0, 1, 2, 3};
  w.shape = {4, 2, 8, 4};
  w.lengths = {8 * 125};
  for (Rank rank = 0; rank < 4; ++rank) {
    w.homes.push_back({rank, 0, {rank * 125, rank * 125 + 125}});
    w.homes.push_back({rank, 0, {(7 - rank) * 125, (8 - rank) * 125}});
  }
  // 125 is no multiple of the block; all the same only keys travel.
  const Plan plan = cad(w, options(128, 0.1, true));
  expect_valid(plan);
  EXPECT_EQ(test::total_bytes(plan), test::total_bytes(all_gather(w, config::Gather::seen)));
  EXPECT_LT(imbalance(plan), 1.01);
}

TEST(CadHalves, PrefixesAndSuffixesAreBalancedOnTheirOwn) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    Workload w = draw.between(0, 1) == 1
                     ? grouped(draw, 2, static_cast<int>(draw.between(1, 3)), true, 600)
                     : test::random_workload(draw, 16);
    const double tolerance = draw.of<double>({0.0, 0.1});
    std::vector<Range> second;
    for (std::int64_t length : w.lengths) {
      const std::int64_t cut = draw.of<std::int64_t>({0, length, draw.between(0, length)});
      w.queries.push_back({0, cut});
      second.push_back({cut, length});
    }
    for (int half = 0; half < 2; ++half) {
      if (half == 1) w.queries = second;
      const Plan plan = cad(w, options(16, tolerance, draw.between(0, 1) == 1));
      expect_valid(plan);
      if (total_pairs(w) > 0) {
        EXPECT_LE(imbalance(plan), 1 + tolerance + one_block(w, 16) + 1e-9);
      }
    }
  }
}

TEST(CadHalves, TheHalvesOfAWorkloadAreBalanced) {
  for (int ranks : {2, 4}) {
    const Workload w = workload(heavy_tailed(ranks, 16384, 3));
    for (const Workload& half : halves(w)) {
      const Plan plan = cad(half, options(128, 0.05, true));
      expect_valid(plan);
      EXPECT_LE(imbalance(plan), 1.05 + one_block(half, 128));
    }
  }
}

TEST(CadPools, TrainersAndDedicatedServersShareTheWork) {
  Workload w = workload(heavy_tailed(4, 16384, 5), 2);
  w.servers = {0, 1, 2, 3, 4, 5};
  const Plan plan = cad(w, options(128, 0.05, true));
  expect_valid(plan);
  EXPECT_LE(imbalance(plan), 1.05 + one_block(w, 128));
  for (Rank rank : w.servers) EXPECT_GT(plan.cost_per_rank[static_cast<std::size_t>(rank)], 0);
}

TEST(CadPools, GroupsThatIdleServe) {
  // Stages of a pipeline at a tick: only every second rank has a microbatch.
  const Workload w = workload({{4000, 300}, {}, {2000, 2000}, {}, {}, {100}});
  const Plan plan = cad(w, options(128, 0.05, true));
  expect_valid(plan);
  EXPECT_LE(imbalance(plan), 1.05 + one_block(w, 128));
}

/// The search leaves out items whose bound another offer beats.
TEST(Parts, NoOfferGainsMoreThanTheBound) {
  int offers = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const Workload w = grouped(draw, 2, 3, draw.between(0, 1) == 1, 700);
    const std::int64_t block = draw.of(std::vector<std::int64_t>{1, 5, 16, 128});
    const Homes homes(w);
    const Residency residency(w, homes);
    const Score score(config::Priority::resident, w.shape, residency);
    for (const DocumentShard& shard : make_shards(w, homes, block)) {
      const std::int64_t begin = draw.between(0, shard.pairs() - 1);
      const Range item{begin, draw.between(begin + 1, shard.pairs())};
      const Weight all = shard.cost(item);
      for (std::int64_t count = 1; count <= item.size(); count += 1 + item.size() / 20) {
        const Range pairs{item.end - count, item.end};
        const Weight cost = shard.cost(pairs);
        const Weight limit = cost + static_cast<Weight>(draw.between(0, 100)) * (all - cost) / 100;
        ASSERT_LE(score.gain(shard, item, all, {pairs, cost, cost}),
                  score.most(shard, item, limit));
        ++offers;
      }
    }
  }
  EXPECT_GT(offers, 1000);
}

TEST(Parts, CoverEveryQueryOnceAndPairsCostTheSame) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const Workload w = grouped(draw, 2, 3, draw.between(0, 1) == 1, 700);
    std::int64_t pairs = 0;
    for (const DocumentShard& shard : make_shards(w, Homes(w), 16)) {
      EXPECT_LE(DocumentShard::blocks(shard.head, 16), shard.pairs());
      EXPECT_GE(DocumentShard::blocks(shard.head, 16) + 1, shard.pairs());
      pairs += shard.cost({0, shard.pairs()});
      std::int64_t queries = 0;
      for (std::int64_t i = 0; i < shard.pairs(); ++i) {
        queries += shard.head_of({i, i + 1}).size() + shard.tail_of({i, i + 1}).size();
        EXPECT_LE(shard.cost({i, i + 1}), 16 * shard.span());
      }
      EXPECT_EQ(queries, shard.head.size() + shard.tail.size());
      const std::int64_t limit = draw.between(0, shard.cost({0, shard.pairs()}));
      const std::int64_t fit =
          shard.fitting({0, shard.pairs()}, shard.cost({0, shard.pairs()}), limit);
      EXPECT_LE(shard.cost({shard.pairs() - fit, shard.pairs()}), limit);
      if (fit < shard.pairs()) {
        EXPECT_GT(shard.cost({shard.pairs() - fit - 1, shard.pairs()}), limit);
      }
    }
    EXPECT_EQ(pairs, total_pairs(w));
  }
}

}  // namespace
}  // namespace cadenza::plan::test_cad_workloads
