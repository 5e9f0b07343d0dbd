// SPDX-License-Identifier: Apache-2.0
// Threads and cores of the ranks of a host, from what each finds.
#include "app/runtime/threads.hpp"

#include <gmock/gmock.h>

#include <numeric>

namespace cadenza::app {
namespace {

using testing::ElementsAre;

std::vector<int> cores(int begin, int end) {
  std::vector<int> all(static_cast<std::size_t>(end - begin));
  std::iota(all.begin(), all.end(), begin);
  return all;
}

ThreadFacts on(std::vector<int> list, int wanted = 0) {
  ThreadFacts facts;
  facts.host = "h";
  facts.cores = std::move(list);
  facts.wanted = wanted;
  return facts;
}

std::vector<ThreadFacts> alike(std::size_t ranks, const ThreadFacts& facts) {
  return std::vector<ThreadFacts>(ranks, facts);
}

std::vector<int> threads(const std::vector<ThreadFacts>& ranks) {
  std::vector<int> counts;
  for (const ThreadPlace& place : place_threads(ranks)) counts.push_back(place.threads);
  return counts;
}

TEST(Threads, OneRankTakesAllItsCores) {
  const auto places = place_threads(alike(1, on(cores(0, 6))));
  EXPECT_EQ(places[0].threads, 6);
  EXPECT_TRUE(places[0].pinned);
  EXPECT_EQ(places[0].cores, cores(0, 6));
}

TEST(Threads, RanksThatShareCoresDivideThemIntoSlices) {
  const auto places = place_threads(alike(3, on({1, 2, 3, 4, 8, 9, 10})));
  ASSERT_EQ(places.size(), 3u);
  for (const ThreadPlace& place : places) {
    EXPECT_EQ(place.threads, 2);
    EXPECT_TRUE(place.pinned);
  }
  EXPECT_THAT(places[0].cores, ElementsAre(1, 2));
  EXPECT_THAT(places[1].cores, ElementsAre(3, 4));
  EXPECT_THAT(places[2].cores, ElementsAre(8, 9));
}

TEST(Threads, RanksThatTheLauncherBoundDivideNothing) {
  const auto places = place_threads({{on(cores(0, 4)), on(cores(4, 8)), on({9})}});
  EXPECT_EQ(places[0].threads, 4);
  EXPECT_EQ(places[1].threads, 4);
  EXPECT_EQ(places[2].threads, 1);
  EXPECT_EQ(places[1].cores, cores(4, 8));
  EXPECT_TRUE(places[2].pinned);
}

TEST(Threads, TwoRanksPerSocketDivideTheirSocket) {
  const auto places =
      place_threads({{on(cores(0, 4)), on(cores(4, 8)), on(cores(0, 4)), on(cores(4, 8))}});
  EXPECT_THAT(places[0].cores, ElementsAre(0, 1));
  EXPECT_THAT(places[1].cores, ElementsAre(4, 5));
  EXPECT_THAT(places[2].cores, ElementsAre(2, 3));
  EXPECT_THAT(places[3].cores, ElementsAre(6, 7));
}

TEST(Threads, TheUsersNumberCounts) {
  EXPECT_THAT(threads(alike(2, on(cores(0, 8), 3))), ElementsAre(3, 3));
  EXPECT_THAT(threads(alike(2, on(cores(0, 8), 16))), ElementsAre(16, 16));
  const auto places = place_threads(alike(2, on(cores(0, 8), 3)));
  EXPECT_THAT(places[1].cores, ElementsAre(3, 4, 5));
  EXPECT_TRUE(places[1].pinned);
}

TEST(Threads, SlurmsNumberIsAnUpperBound) {
  ThreadFacts facts = on(cores(0, 8));
  facts.granted = 3;
  EXPECT_THAT(threads(alike(1, facts)), ElementsAre(3));
  EXPECT_THAT(threads(alike(2, facts)), ElementsAre(3, 3));
  EXPECT_THAT(threads(alike(4, facts)), ElementsAre(2, 2, 2, 2));
  facts.wanted = 5;
  EXPECT_THAT(threads(alike(1, facts)), ElementsAre(5));
}

TEST(Threads, MoreRanksThanCoresHaveOneThreadEachAndAreNotPinned) {
  for (const ThreadPlace& place : place_threads(alike(5, on(cores(0, 2))))) {
    EXPECT_EQ(place.threads, 1);
    EXPECT_FALSE(place.pinned);
    EXPECT_EQ(place.cores, cores(0, 2));
  }
}

TEST(Threads, HalfOfTheCoresOrFewerAreNotPinned) {
  // Two jobs of one thread on two cores would both be pinned to the first.
  EXPECT_FALSE(place_threads(alike(1, on(cores(0, 2), 1)))[0].pinned);
  EXPECT_TRUE(place_threads(alike(1, on(cores(0, 3), 2)))[0].pinned);
}

TEST(Threads, AUserWhoBindsAndOverlappingRanksAreLeftAlone) {
  ThreadFacts facts = on(cores(0, 4));
  facts.user_binds = true;
  EXPECT_THAT(threads(alike(2, facts)), ElementsAre(2, 2));
  EXPECT_FALSE(place_threads(alike(2, facts))[0].pinned);
  const auto places = place_threads({{on(cores(0, 4)), on(cores(2, 6))}});
  EXPECT_EQ(places[0].threads, 2);
  EXPECT_FALSE(places[0].pinned);
  EXPECT_EQ(places[1].cores, cores(2, 6));
}

/// What is pinned is pinned to as many cores as threads, and no two ranks to the same.
TEST(Threads, SlicesNeverOverlap) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (int size = 1; size <= 12; ++size) {
      for (int wanted = 0; wanted <= 3; ++wanted) {
        std::vector<int> used(static_cast<std::size_t>(size));
        for (const auto& place :
             place_threads(alike(static_cast<std::size_t>(ranks), on(cores(0, size), wanted)))) {
          EXPECT_GE(place.threads, 1);
          if (!place.pinned) continue;
          EXPECT_EQ(static_cast<int>(place.cores.size()), place.threads);
          for (const int core : place.cores) EXPECT_EQ(++used[static_cast<std::size_t>(core)], 1);
        }
      }
    }
  }
}

TEST(DescribeThreads, SaysRanksThreadsAndCores) {
  EXPECT_THAT(describe_threads(alike(2, on(cores(0, 2)))),
              ElementsAre("2 ranks x 1 thread, cores 0 | 1 (pinned)"));
  EXPECT_THAT(describe_threads(alike(1, on({0, 1, 2, 5}))),
              ElementsAre("1 rank x 4 threads, cores 0-2,5 (pinned)"));
  EXPECT_THAT(describe_threads(alike(1, on(cores(0, 4), 2))),
              ElementsAre("1 rank x 2 threads, cores 0-3 (not pinned)"));
  EXPECT_THAT(describe_threads(alike(12, on(cores(0, 12)))),
              ElementsAre("12 ranks x 1 thread, cores 0 | 1 | ... | 11 (pinned)"));
  EXPECT_THAT(describe_threads({{on(cores(0, 3)), on({3})}}),
              ElementsAre("2 ranks x 3 | 1 threads, cores 0-2 | 3 (pinned)"));
  ThreadFacts facts = on(cores(0, 2));
  facts.user_binds = true;
  EXPECT_THAT(describe_threads(alike(2, facts)),
              ElementsAre("2 ranks x 1 thread, cores 0-1 (binding as OMP_PROC_BIND says)"));
}

TEST(DescribeThreads, WarnsOfTooManyThreads) {
  EXPECT_THAT(describe_threads(alike(2, on(cores(0, 2), 2))),
              ElementsAre("2 ranks x 2 threads, cores 0-1 (not pinned); oversubscribed: 4 threads "
                          "on 2 cores, so times will be longer"));
  // Together they have cores enough, but the first rank's threads all run on one.
  EXPECT_THAT(describe_threads({{on({0}, 2), on(cores(1, 8), 2)}})[0],
              testing::HasSubstr("oversubscribed: 2 threads on 1 core,"));
}

TEST(DescribeThreads, WarnsOfCoresThatMpirunLeavesIdle) {
  ThreadFacts first = on({0});
  ThreadFacts second = on({1});
  first.host_cores = second.host_cores = 16;
  EXPECT_THAT(describe_threads({{first, second}}),
              ElementsAre("2 ranks x 1 thread, cores 0 | 1 (pinned); mpirun's binding leaves 14 "
                          "cores idle, use --bind-to none"));
  first.wanted = second.wanted = 1;
  EXPECT_THAT(describe_threads({{first, second}}),
              ElementsAre("2 ranks x 1 thread, cores 0 | 1 (pinned)"));
  first.wanted = second.wanted = 8;
  EXPECT_THAT(describe_threads({{first, second}})[0],
              AllOf(testing::HasSubstr("oversubscribed: 8 threads on 1 core"),
                    testing::HasSubstr("14 cores idle")));
}

TEST(DescribeThreads, SaysEverySituationOnce) {
  std::vector<ThreadFacts> ranks = alike(6, on(cores(0, 2)));
  ranks[0].host = ranks[1].host = "a";
  ranks[2].host = ranks[3].host = "b";
  ranks[4].host = ranks[5].host = "c";
  EXPECT_THAT(describe_threads(ranks),
              ElementsAre("3 hosts: 2 ranks x 1 thread, cores 0 | 1 (pinned)"));
  ranks[5].host = "d";
  EXPECT_THAT(describe_threads(ranks),
              testing::UnorderedElementsAre("2 hosts: 1 rank x 2 threads, cores 0-1 (pinned)",
                                            "2 hosts: 2 ranks x 1 thread, cores 0 | 1 (pinned)"));
  ranks[4].cores = cores(0, 4);
  EXPECT_THAT(describe_threads(ranks),
              testing::Contains("c: 1 rank x 4 threads, cores 0-3 (pinned)"));
}

}  // namespace
}  // namespace cadenza::app
