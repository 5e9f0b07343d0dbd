// SPDX-License-Identifier: Apache-2.0
// Documents that get ranks of a context group by their cost, and PTRR.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "cadenza/cost/flops.hpp"
#include "cases.hpp"
#include "plan/workload/sharding.hpp"

namespace cadenza::plan::test_degrees {
namespace {

using config::PlacementKind;
using config::Sharding;
using test::Draw;
using test::experiment;
using test::group_workload;
using ::testing::ElementsAre;

/// Ranks by document.
std::map<int, std::set<Rank>> ranks_of(const std::vector<Home>& homes) {
  std::map<int, std::set<Rank>> ranks;
  for (const Home& home : homes) ranks[home.document].insert(home.rank);
  return ranks;
}

cost::DocumentCost causal(double break_even) {
  cost::DocumentCost cost;
  cost.break_even = break_even;
  return cost;
}

/// Tokens and cost by rank; documents are causal, and cut in zigzag, so that their ranks share the
/// cost equally.
struct Shares {
  std::vector<double> tokens, costs;
};
Shares shares_of(const std::vector<Home>& homes, std::span<const std::int64_t> lengths,
                 const DegreeRule& rule) {
  Shares shares{std::vector<double>(static_cast<std::size_t>(rule.ranks), 0.0),
                std::vector<double>(static_cast<std::size_t>(rule.ranks), 0.0)};
  for (const Home& home : homes) {
    shares.tokens[at(home.rank)] += static_cast<double>(home.tokens.size());
  }
  for (const auto& [document, ranks] : ranks_of(homes)) {
    const auto length = static_cast<double>(lengths[at(document)]);
    const double cost = length + length * length / rule.cost.break_even;
    for (const Rank rank : ranks) {
      shares.costs[at(rank)] += cost / static_cast<double>(ranks.size());
    }
  }
  return shares;
}

TEST(Degrees, ShortDocumentsAreWholeAndLongOnesCut) {
  const std::vector<std::int64_t> lengths = {40, 10, 10, 10, 10};
  DegreeRule rule{4, {}, false, 2.0, causal(10)};
  // 40 + 160 = 200 of 280; the mean is 70: on 4 ranks 50 each, and 20 of each short one.
  auto ranks = ranks_of(shard_by_degree(lengths, 0, rule));
  EXPECT_THAT(ranks[0], ElementsAre(0, 1, 2, 3));
  for (int document = 1; document < 5; ++document) {
    EXPECT_THAT(ranks[document], ElementsAre(document - 1));
  }
  // Where attention costs nothing, half of the tokens are half of the ranks.
  rule.cost.break_even = 1e9;
  ranks = ranks_of(shard_by_degree(lengths, 0, rule));
  EXPECT_EQ(ranks[0].size(), 2U);
  EXPECT_EQ(ranks[1].size(), 1U);
}

TEST(Degrees, OneRankOrAll) {
  const std::vector<std::int64_t> lengths = {40, 10, 10, 10, 10};
  const DegreeRule rule{4, {}, true, 2.0, causal(1e9)};
  const auto homes = shard_by_degree(lengths, 0, rule);
  for (const auto& [document, ranks] : ranks_of(homes)) {
    EXPECT_THAT(ranks.size(), ::testing::AnyOf(1U, 4U)) << document;
  }
  EXPECT_EQ(ranks_of(homes)[0].size(), 4U) << "no rank may hold 40 of 20 tokens";
}

TEST(Degrees, EqualDocumentsThatDivideStayWhole) {
  const std::vector<std::int64_t> lengths(24, 100);
  const auto homes = shard_by_degree(lengths, 5, {8, {}, false, 1.0, causal(100)});
  std::map<Rank, int> documents;
  for (const Home& home : homes) {
    EXPECT_EQ(home.tokens, (Range{0, 100}));
    ++documents[home.rank];
  }
  EXPECT_EQ(homes.front().document, 5);
  for (Rank rank = 0; rank < 8; ++rank) EXPECT_EQ(documents[rank], 3) << rank;
}

// Whatever the lengths: every token has one home, documents lie on subgroups that nest, ranks have
// about the tokens that they may have and, with room for that, about the same cost.
TEST(Degrees, AnyLengthsAreSharedByCost) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    DegreeRule rule;
    rule.ranks = static_cast<int>(draw.between(1, 16));
    rule.longest = draw.of(std::vector<double>{1.0, 1.25, 2.0});
    rule.cost.break_even = draw.of(std::vector<double>{10, 100, 1e6});
    rule.ends_only = draw.between(0, 2) == 0;
    std::vector<std::int64_t> lengths;
    for (std::int64_t n = draw.between(1, 40); n > 0; --n) {
      lengths.push_back(draw.uniform() < 0.2 ? draw.between(200, 2000) : draw.between(1, 100));
    }
    const std::vector<Home> homes = shard_by_degree(lengths, 0, rule);
    std::map<int, std::int64_t> end;
    for (const Home& home : homes) {
      EXPECT_EQ(home.tokens.begin, end[home.document]);
      end[home.document] = home.tokens.end;
    }
    double total = 0;
    double most_tokens = 0;
    for (std::size_t d = 0; d < lengths.size(); ++d) {
      EXPECT_EQ(end[static_cast<int>(d)], lengths[d]);
      total += rule.cost(lengths[d]);
      most_tokens += static_cast<double>(lengths[d]);
    }
    for (const auto& [document, ranks] : ranks_of(homes)) {
      if (lengths[at(document)] < 2 * rule.ranks) continue;  // some ranks have no part
      const int size = static_cast<int>(ranks.size());
      EXPECT_EQ(rule.ranks % size, 0);
      EXPECT_EQ(*ranks.begin() % size, 0);
      EXPECT_EQ(*ranks.rbegin() - *ranks.begin() + 1, size);
      if (rule.ends_only) {
        EXPECT_THAT(size, ::testing::AnyOf(1, rule.ranks));
      }
    }
    const Shares shares = shares_of(homes, lengths, rule);
    const double mean = total / rule.ranks;
    most_tokens *= rule.longest / rule.ranks;
    for (std::size_t rank = 0; rank < shares.costs.size(); ++rank) {
      EXPECT_LE(shares.tokens[rank], 1.25 * most_tokens + static_cast<double>(lengths.size()));
      if (rule.longest == 2.0) {
        EXPECT_LE(shares.costs[rank], 1.5 * mean + 10) << rank;
      }
    }
  }
}

TEST(Degrees, FasterRanksGetMore) {
  const std::vector<std::int64_t> lengths(40, 10);
  const auto homes = shard_by_degree(lengths, 0, {2, {100, 300}, false, 4.0, causal(1e9)});
  std::vector<std::int64_t> tokens(2, 0);
  for (const Home& home : homes) tokens[at(home.rank)] += home.tokens.size();
  EXPECT_EQ(tokens, (std::vector<std::int64_t>{100, 300}));
}

TEST(Degrees, KeysGoRoundTheRanksOfTheirDocument) {
  config::Experiment e = experiment(PlacementKind::dynamic, 8);
  e.batch.longest = 2;
  e.batch.break_even = 1'000'000;
  const Workload w = group_workload(e, {{64, 32, 16, 16}});
  auto ranks = ranks_of(w.homes);
  EXPECT_EQ(ranks[0].size(), 4U);
  EXPECT_EQ(ranks[1].size(), 2U);
  const Plan plan = make_plan(e.attention, w);
  EXPECT_EQ(plan.stages.size(), 4U) << "a ring of four ranks, and shorter ones beside it";
  std::map<std::pair<int, std::size_t>, std::int64_t> keys;
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
    for (const Move& move : plan.stages[stage].moves) {
      EXPECT_TRUE(ranks[move.document].contains(move.from));
      EXPECT_TRUE(ranks[move.document].contains(move.to));
      if (move.what == Tensor::k) keys[{move.document, stage}] += move.tokens.size();
    }
  }
  EXPECT_GT((keys[{0, 3}]), 0) << "the long one needs all hops";
  EXPECT_GT((keys[{1, 1}]), 0);
  EXPECT_EQ((keys[{1, 2}]), 0) << "its ring has two ranks";
}

// PyTorch sorts blocks of queries by the keys that they see, and deals them to and fro: of one
// causal sequence of eight blocks, rank 0 gets the heaviest, the fourth, fifth and eighth.
TEST(Ptrr, DealsBlocksToAndFro) {
  const std::vector<std::int64_t> one = {16};
  EXPECT_THAT(shard_by_work(one, 0, 2, 2, Mask()),
              ElementsAre(Home{0, 0, {0, 2}}, Home{1, 0, {2, 6}}, Home{0, 0, {6, 10}},
                          Home{1, 0, {10, 14}}, Home{0, 0, {14, 16}}));
  // Blocks are those of the microbatch: the second holds the end of one document and the begin of
  // the next, and the last is short.
  const std::vector<std::int64_t> two = {6, 5};
  EXPECT_THAT(
      shard_by_work(two, 3, 2, 4, Mask()),
      ElementsAre(Home{1, 3, {0, 4}}, Home{0, 3, {4, 6}}, Home{0, 4, {0, 2}}, Home{1, 4, {2, 5}}));
}

TEST(Ptrr, LeavesRanksEqual) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    config::Experiment e = experiment(PlacementKind::all_gather, draw.between(1, 8));
    e.attention.sharding = Sharding::ptrr;
    e.attention.block = draw.between(1, 9);
    std::vector<std::int64_t> lengths;
    for (std::int64_t n = draw.between(1, 9); n > 0; --n) lengths.push_back(draw.between(1, 60));
    const Workload w = group_workload(e, {lengths});
    std::vector<std::int64_t> rows(static_cast<std::size_t>(w.ranks), 0);
    for (const Home& home : w.homes) rows[at(home.rank)] += home.tokens.size();
    EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}),
              std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}));
    const auto [least, most] = std::ranges::minmax(rows);
    EXPECT_LE(most - least, 2 * e.attention.block);
  }
}

}  // namespace
}  // namespace cadenza::plan::test_degrees
