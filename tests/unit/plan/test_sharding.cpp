// SPDX-License-Identifier: Apache-2.0
// How context groups share tokens: published layouts, balance for any lengths, halves.
#include <gmock/gmock.h>

#include <map>

#include "cadenza/base/error.hpp"
#include "cases.hpp"
#include "plan/workload/sharding.hpp"

namespace cadenza::plan::test_sharding {
namespace {

using config::PlacementKind;
using test::Draw;
using test::experiment;
using test::group_workload;

/// Text positions by rank, in rows.
std::vector<std::vector<std::int64_t>> layout(const Workload& w) {
  std::vector<std::vector<std::int64_t>> ranks(static_cast<std::size_t>(w.ranks));
  for (const Home& home : w.homes) {
    for (std::int64_t t = home.tokens.begin; t < home.tokens.end; ++t) {
      const std::int64_t length = w.lengths[static_cast<std::size_t>(home.document)];
      ranks[static_cast<std::size_t>(home.rank)].push_back(position_of(w.order, length, t));
    }
  }
  return ranks;
}

using Layout = std::vector<std::vector<std::int64_t>>;

TEST(Sharding, PublishedLayoutsOf16TokensOn4Ranks) {
  const auto of = [](PlacementKind placement) {
    config::Experiment e = experiment(placement, 4);
    e.attention.block = 2;
    return layout(group_workload(e, {{16}}));
  };
  EXPECT_EQ(of(PlacementKind::ring),
            (Layout{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}}));
  EXPECT_EQ(of(PlacementKind::zigzag),
            (Layout{{0, 1, 14, 15}, {2, 3, 12, 13}, {4, 5, 10, 11}, {6, 7, 8, 9}}));
  EXPECT_EQ(of(PlacementKind::striped),
            (Layout{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}));
  EXPECT_EQ(of(PlacementKind::block_striped),
            (Layout{{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}}));
  EXPECT_EQ(of(PlacementKind::ulysses), of(PlacementKind::ring));
  for (const PlacementKind placement :
       {PlacementKind::all_gather, PlacementKind::double_ring, PlacementKind::cad}) {
    EXPECT_EQ(of(placement), of(PlacementKind::zigzag));
  }
}

TEST(Sharding, SharingIsAChoiceWhereThePlacementLeavesIt) {
  config::Experiment e = experiment(PlacementKind::all_gather, 2);
  e.attention.sharding = config::Sharding::contiguous;
  EXPECT_EQ(layout(group_workload(e, {{4, 4}})), (Layout{{0, 1, 0, 1}, {2, 3, 2, 3}}));
  e.attention.shard_unit = config::ShardUnit::sequence;
  EXPECT_EQ(layout(group_workload(e, {{4, 4}})), (Layout{{0, 1, 2, 3}, {0, 1, 2, 3}}));
  e.attention.sharding = config::Sharding::zigzag;
  EXPECT_EQ(layout(group_workload(e, {{4, 4}})), (Layout{{0, 1, 2, 3}, {2, 3, 0, 1}}));
}

TEST(Sharding, HeadGroupsCutTheRowsOfTheirRingPosition) {
  config::Experiment e = experiment(PlacementKind::ulysses_ring, 4);
  e.attention.head_parallel = 2;
  EXPECT_EQ(layout(group_workload(e, {{16}})),
            (Layout{{0, 1, 2, 3}, {12, 13, 14, 15}, {4, 5, 6, 7}, {8, 9, 10, 11}}));
}

TEST(Sharding, AnyLengthsLeaveRanksEqual) {
  const std::vector<PlacementKind> placements = {
      PlacementKind::ring, PlacementKind::zigzag, PlacementKind::striped,
      PlacementKind::block_striped, PlacementKind::ulysses_ring};
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Draw draw(seed);
    config::Experiment e = experiment(draw.of(placements), draw.between(1, 8));
    e.attention.block = draw.between(1, 9);
    e.attention.shard_unit = draw.of(std::vector<config::ShardUnit>{
        config::ShardUnit::document, config::ShardUnit::sequence, config::ShardUnit::predicted});
    if (e.parallel.context % 2 == 0) e.attention.head_parallel = 2;
    std::vector<std::int64_t> lengths;
    for (std::int64_t n = draw.between(1, 9); n > 0; --n) lengths.push_back(draw.between(1, 60));
    const Workload w = group_workload(e, {lengths});
    std::map<int, std::int64_t> end;  // of each document, homes being ascending
    std::vector<std::int64_t> rows(static_cast<std::size_t>(w.ranks), 0);
    for (const Home& home : w.homes) {
      EXPECT_FALSE(home.tokens.empty()) << "seed " << seed;
      EXPECT_EQ(home.tokens.begin, end[home.document]) << "seed " << seed;
      end[home.document] = home.tokens.end;
      rows[static_cast<std::size_t>(home.rank)] += home.tokens.size();
    }
    for (std::size_t d = 0; d < lengths.size(); ++d) {
      EXPECT_EQ(end[static_cast<int>(d)], lengths[d]) << "seed " << seed;
    }
    const auto [least, most] = std::minmax_element(rows.begin(), rows.end());
    const bool runs = e.attention.placement == PlacementKind::block_striped;
    EXPECT_LE(*most - *least, runs ? 2 * e.attention.block : 1) << "seed " << seed;
  }
}

TEST(Sharding, IsInProportionToCapacities) {
  const std::vector<std::int64_t> lengths = {300};
  EXPECT_THAT(shard(lengths, 0, {2, 1, true, {100, 50}}),
              ::testing::ElementsAre(Home{0, 0, {0, 200}}, Home{1, 0, {200, 300}}));
  EXPECT_THAT(
      shard(lengths, 0, {2, 2, true, {100, 50}}),
      ::testing::ElementsAre(Home{0, 0, {0, 100}}, Home{1, 0, {100, 200}}, Home{0, 0, {200, 300}}));
  EXPECT_THAT(shard(lengths, 0, {2, 1, true, {1, 10000}}),
              ::testing::ElementsAre(Home{1, 0, {0, 300}}))
      << "a share below one token";
  EXPECT_EQ(shard(lengths, 0, {3, 2, true, {80, 80, 80}}), shard(lengths, 0, {3, 2, true, {}}));
}

/// What a document is too short to share adds up: the shares hold for all of them.
TEST(Sharding, ManyShortDocumentsAreInProportionToCapacities) {
  for (const int chunks : {1, 2}) {
    Draw draw(12);
    std::vector<std::int64_t> lengths(2000);
    for (std::int64_t& length : lengths) length = draw.between(1, 5);
    std::vector<double> tokens(4, 0);
    double total = 0;
    for (const Home& home : shard(lengths, 0, {4, chunks, true, {100, 50, 100, 150}})) {
      tokens[static_cast<std::size_t>(home.rank)] += static_cast<double>(home.tokens.size());
      total += static_cast<double>(home.tokens.size());
    }
    const double shares[] = {0.25, 0.125, 0.25, 0.375};
    for (std::size_t rank = 0; rank < 4; ++rank) {
      EXPECT_NEAR(tokens[rank], shares[rank] * total, 4 * chunks) << "rank " << rank;
    }
  }
}

/// Two chunks of every document bring a rank causal attention in proportion, too.
TEST(Sharding, AnyCapacitiesGetTheirShares) {
  Draw draw(11);
  for (int trial = 0; trial < 200; ++trial) {
    const int ranks = static_cast<int>(draw.between(1, 6));
    const int chunks = static_cast<int>(draw.between(1, 2));
    std::vector<std::int64_t> lengths;
    for (std::int64_t i = draw.between(1, 4); i > 0; --i) lengths.push_back(draw.between(1, 3000));
    Cut cut{ranks, chunks, draw.between(0, 1) == 1, {}};
    double all = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      cut.capacities.push_back(draw.between(1, 200));
      all += static_cast<double>(cut.capacities.back());
    }
    std::vector<double> tokens(static_cast<std::size_t>(ranks), 0), pairs = tokens;
    std::vector<std::int64_t> next(lengths.size(), 0);
    double total = 0, total_pairs = 0, pair_room = 0;
    for (const std::int64_t length : lengths) {
      total += static_cast<double>(length);
      total_pairs += static_cast<double>(length * (length + 1) / 2);
      pair_room += static_cast<double>((chunks + 1) * length);
    }
    for (const Home& home : shard(lengths, 0, cut)) {
      std::int64_t& begin = next[static_cast<std::size_t>(home.document)];
      ASSERT_EQ(home.tokens.begin, begin) << "documents are covered in order";
      begin = home.tokens.end;
      tokens[static_cast<std::size_t>(home.rank)] += static_cast<double>(home.tokens.size());
      pairs[static_cast<std::size_t>(home.rank)] +=
          static_cast<double>(allowed_pairs(home.tokens, {0, home.tokens.end}, Band::causal()));
    }
    EXPECT_EQ(next, lengths);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      const double share = static_cast<double>(cut.capacities[at]) / all;
      EXPECT_NEAR(tokens[at], share * total, 2 * chunks) << "rank " << rank;
      if (chunks == 1 || !cut.documents) continue;
      EXPECT_NEAR(pairs[at], share * total_pairs, pair_room) << "rank " << rank;
    }
  }
}

TEST(Sharding, EveryPlacementButStripesKnowsCapacities) {
  std::vector<data::Microbatch> microbatches(2);
  for (data::Microbatch& microbatch : microbatches) {
    data::BatchDocument document;
    document.tokens = {0, 240};
    microbatch.documents = {document};
  }
  const std::vector<Occupant> groups = {&microbatches[0], &microbatches[1]};
  const std::vector<std::int64_t> capacities = {100, 100, 100, 50, 30, 30, 90, 90};
  const auto tokens = [&](PlacementKind placement, config::Overlap overlap) {
    config::Experiment e = experiment(placement, 4);
    e.parallel.data = 2;
    e.attention.head_parallel = 2;
    e.attention.overlap = overlap;
    std::vector<std::int64_t> held(8, 0);
    for (const Home& home : make_workload(e, groups, 0, capacities).homes) {
      held[static_cast<std::size_t>(home.rank)] += home.tokens.size();
    }
    return held;
  };
  const std::vector<std::int64_t> shares = {69, 69, 69, 34, 30, 30, 90, 90};
  const auto near =
      ::testing::Pointwise(::testing::Truly([](const auto& pair) {
                             return std::abs(std::get<0>(pair) - std::get<1>(pair)) <= 3;
                           }),
                           shares);
  for (const PlacementKind placement :
       {PlacementKind::ring, PlacementKind::zigzag, PlacementKind::ulysses,
        PlacementKind::all_gather, PlacementKind::double_ring, PlacementKind::cad}) {
    EXPECT_THAT(tokens(placement, config::Overlap::none), near) << static_cast<int>(placement);
  }
  EXPECT_THAT(tokens(PlacementKind::cad, config::Overlap::ping_pong), near);
  EXPECT_THAT(tokens(PlacementKind::ulysses_ring, config::Overlap::none),
              ::testing::ElementsAre(68, 69, 51, 52, 30, 30, 90, 90))
      << "ranks that share heads share the rows of their ring position";
  for (const PlacementKind placement : {PlacementKind::striped, PlacementKind::block_striped}) {
    for (const std::int64_t held : tokens(placement, config::Overlap::none)) {
      EXPECT_NEAR(static_cast<double>(held), 60, 128) << static_cast<int>(placement);
    }
  }
}

/// Stages of a pipeline pass a microbatch on row by row.
TEST(Sharding, StagesShareAMicrobatchAlike) {
  data::Microbatch microbatch;
  data::BatchDocument document;
  document.tokens = {0, 90};
  microbatch.documents = {document};
  config::Experiment e = experiment(PlacementKind::cad, 2);
  e.attention.sharding = config::Sharding::contiguous;
  e.parallel.data = 2;
  e.parallel.pipeline = 2;
  const std::vector<Occupant> groups(4, &microbatch);
  const Workload w = make_workload(e, groups, 0, {100, 50, 100, 100, 100, 100, 20, 40});
  EXPECT_THAT(w.homes, ::testing::ElementsAre(Home{0, 0, {0, 60}}, Home{1, 0, {60, 90}},
                                              Home{2, 1, {0, 30}}, Home{3, 1, {30, 90}},
                                              Home{4, 2, {0, 60}}, Home{5, 2, {60, 90}},
                                              Home{6, 3, {0, 30}}, Home{7, 3, {30, 90}}));
}

TEST(Sharding, PredictionChoosesTheUnit) {
  config::Experiment e = experiment(PlacementKind::all_gather, 4);
  const auto homes = [&](config::ShardUnit unit, const std::vector<std::int64_t>& lengths) {
    e.attention.shard_unit = unit;
    return group_workload(e, {lengths}).homes;
  };
  const std::vector<std::int64_t> uneven = {16384, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 8192};
  EXPECT_EQ(homes(config::ShardUnit::predicted, uneven),
            homes(config::ShardUnit::document, uneven));
  const std::vector<std::int64_t> shorts(64, 256);
  EXPECT_EQ(homes(config::ShardUnit::predicted, shorts),
            homes(config::ShardUnit::sequence, shorts));
  EXPECT_NE(homes(config::ShardUnit::sequence, shorts), homes(config::ShardUnit::document, shorts));
}

TEST(Sharding, PredictionCountsWholeTiles) {
  // 256 queries after 128 keys: tiles of 2 and 3 keys; one token costs a tile of its own.
  const std::vector<Home> homes = {{0, 0, {128, 384}}, {1, 0, {384, 385}}};
  EXPECT_DOUBLE_EQ(predicted_tiles({}, homes, 2), 5.0);
  EXPECT_DOUBLE_EQ(predicted_tiles({}, std::span(homes).subspan(1), 2), 4.0);
  const std::vector<std::int64_t> capacities = {50, 100};
  EXPECT_DOUBLE_EQ(predicted_tiles({}, homes, 2, capacities), 10.0) << "in half the time";
}

TEST(Sharding, PredictionCountsNoKeysBehindADocument) {
  const std::vector<Home> homes = {{0, 0, {0, 128}}};
  EXPECT_DOUBLE_EQ(predicted_tiles(Mask::prefix(1000), homes, 1), 1.0);
  const std::vector<Home> longer = {{0, 0, {0, 128}}, {1, 0, {128, 512}}};
  EXPECT_DOUBLE_EQ(predicted_tiles(Mask::prefix(512), std::span(longer), 2), 12.0);
}

TEST(Halves, AreTheSameTokensInTwoParts) {
  const std::vector<PlacementKind> placements = {PlacementKind::ring, PlacementKind::zigzag,
                                                 PlacementKind::all_gather, PlacementKind::cad};
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Draw draw(seed);
    config::Experiment e = experiment(draw.of(placements), draw.between(1, 5));
    std::vector<std::vector<std::int64_t>> groups(static_cast<std::size_t>(draw.between(1, 3)));
    for (auto& lengths : groups) {
      for (std::int64_t n = draw.between(0, 6); n > 0; --n) lengths.push_back(draw.between(1, 90));
    }
    e.attention.sharding = config::Sharding::zigzag;
    const bool shared = draw.between(0, 1) == 0;
    if (shared) e.attention.overlap = config::Overlap::ping_pong;
    const Workload whole = group_workload(e, groups);
    const std::array<Workload, 2> both = halves(whole);
    EXPECT_EQ(both[0].homes, both[1].homes);
    EXPECT_EQ(both[0].lengths, whole.lengths);
    std::vector<int> cut(groups.size(), 0);
    for (std::size_t d = 0; d < whole.lengths.size(); ++d) {
      EXPECT_EQ(both[0].queries[d].begin, 0);
      EXPECT_EQ(both[0].queries[d].end, both[1].queries[d].begin);
      EXPECT_EQ(both[1].queries[d].end, whole.lengths[d]);
    }
    std::vector<char> second(static_cast<std::size_t>(whole.ranks), 0);
    std::map<int, std::int64_t> tokens;
    std::map<int, std::int64_t> surplus;  // of groups
    std::map<Rank, std::int64_t> surplus_of_ranks;
    for (const Home& home : both[0].homes) {
      const Range first = both[0].queries[static_cast<std::size_t>(home.document)];
      const bool in_first = first.contains(home.tokens);
      EXPECT_TRUE(in_first || !first.overlaps(home.tokens)) << "a home is in both halves";
      char& seen = second[static_cast<std::size_t>(home.rank)];
      EXPECT_FALSE(seen && in_first) << "rows of the first half come first";
      seen = seen || !in_first;
      tokens[home.document] += home.tokens.size();
      const std::int64_t more = in_first ? home.tokens.size() : -home.tokens.size();
      surplus[home.rank / whole.context] += more;
      surplus_of_ranks[home.rank] += more;
    }
    for (const auto& [document, count] : tokens) {
      EXPECT_EQ(count, whole.lengths[static_cast<std::size_t>(document)]);
    }
    for (const auto& [group, rows] : surplus) EXPECT_LE(std::abs(rows), 1);
    if (!shared) continue;
    for (const auto& [rank, rows] : surplus_of_ranks) EXPECT_LE(std::abs(rows), 2);
  }
}

TEST(Halves, OfStripesDoNotExist) {
  const Workload w = group_workload(experiment(PlacementKind::striped, 2), {{64}});
  EXPECT_THROW(halves(w), Error);
}

TEST(Halves, AreSharedByAllRanks) {
  config::Experiment e = experiment(PlacementKind::cad, 2);
  e.attention.sharding = config::Sharding::contiguous;
  e.attention.overlap = config::Overlap::ping_pong;
  // 60 tokens and 20 of the second document, then 20 of it and 60.
  const Workload w = group_workload(e, {{60, 40, 60}});
  EXPECT_THAT(w.homes, ::testing::ElementsAre(Home{0, 0, {0, 30}}, Home{1, 0, {30, 60}},
                                              Home{0, 1, {0, 10}}, Home{1, 1, {10, 20}},
                                              Home{0, 1, {20, 30}}, Home{1, 1, {30, 40}},
                                              Home{0, 2, {0, 30}}, Home{1, 2, {30, 60}}));
  const std::array<Workload, 2> both = halves(w);
  EXPECT_THAT(both[0].queries, ::testing::ElementsAre(Range{0, 60}, Range{0, 20}, Range{0, 0}));
  EXPECT_THAT(both[1].queries, ::testing::ElementsAre(Range{60, 60}, Range{20, 40}, Range{0, 60}));
}

}  // namespace
}  // namespace cadenza::plan::test_sharding
