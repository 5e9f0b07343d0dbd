// SPDX-License-Identifier: Apache-2.0
// Threads and cores of the ranks of a host, from what each finds.
#include "app/runtime/threads.hpp"

#include <gmock/gmock.h>

#include <numeric>

namespace cadenza::app::test_threads {
namespace {

using ::testing::ElementsAre;

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

ThreadFacts within(CpuQuota quota, ThreadFacts facts) {
  facts.quota = quota;
  return facts;
}

TEST(Threads, AQuotaIsSharedByTheRanksOfItsGroup) {
  const ThreadFacts pod = within({4.7, 1}, on(cores(0, 16)));
  EXPECT_THAT(threads(alike(1, pod)), ElementsAre(4));
  EXPECT_THAT(threads(alike(3, pod)), ElementsAre(1, 1, 1));
  EXPECT_THAT(threads({{pod, within({2, 2}, on(cores(0, 16)))}}), ElementsAre(4, 2));
  EXPECT_THAT(threads(alike(1, within({0.5, 1}, on(cores(0, 16))))), ElementsAre(1));
  EXPECT_THAT(threads(alike(2, within({64, 1}, on(cores(0, 16))))), ElementsAre(8, 8));
  EXPECT_THAT(threads(alike(1, within({2, 1}, on(cores(0, 16), 6)))), ElementsAre(6));
}

TEST(Threads, NoMoreThanThereIsRoomFor) {
  EXPECT_THAT(threads(alike(1, on(cores(0, 4), 100000))), ElementsAre(kMostThreads));
  const auto places = place_threads(alike(1, on(cores(0, 1000))));
  EXPECT_EQ(places[0].threads, kMostThreads);
  EXPECT_EQ(places[0].cores, cores(0, kMostThreads));
  EXPECT_TRUE(places[0].pinned);
  EXPECT_THAT(threads(alike(2, on(cores(0, 1000)))), ElementsAre(500, 500));
  ThreadFacts limited = on(cores(0, 8));
  limited.most = 3;  // OMP_THREAD_LIMIT
  EXPECT_THAT(threads(alike(1, limited)), ElementsAre(3));
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
  facts.binders = {"OMP_PROC_BIND"};
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
  facts.binders = {"OMP_PROC_BIND"};
  EXPECT_THAT(describe_threads(alike(2, facts)),
              ElementsAre("2 ranks x 1 thread, cores 0-1 (binding as OMP_PROC_BIND says)"));
}

TEST(DescribeThreads, WarnsOfTooManyThreads) {
  EXPECT_THAT(describe_threads(alike(2, on(cores(0, 2), 2))),
              ElementsAre("2 ranks x 2 threads, cores 0-1 (not pinned); oversubscribed: 4 threads "
                          "on 2 cores, so times will be longer"));
  // Together they have cores enough, but the first rank's threads all run on one.
  EXPECT_THAT(describe_threads({{on({0}, 2), on(cores(1, 8), 2)}})[0],
              ::testing::HasSubstr("oversubscribed: 2 threads on 1 core,"));
}

TEST(DescribeThreads, WarnsOfTooManyThreadsOnCoresThatOverlapInPart) {
  EXPECT_THAT(describe_threads({{on(cores(0, 3), 3), on(cores(1, 4), 3)}})[0],
              ::testing::HasSubstr("oversubscribed: 6 threads on 4 cores,"));
  EXPECT_THAT(describe_threads({{on(cores(0, 3), 2), on(cores(1, 4), 2)}})[0],
              ::testing::Not(::testing::HasSubstr("oversubscribed")));
}

TEST(DescribeThreads, SaysWhatAQuotaDoes) {
  EXPECT_THAT(describe_threads(alike(2, within({2.5, 1}, on(cores(0, 8))))),
              ElementsAre("2 ranks x 1 thread, cores 0-7 (not pinned); a CPU quota of 2.5 cores "
                          "leaves others unused"));
  EXPECT_THAT(describe_threads(alike(2, within({2.5, 1}, on(cores(0, 8), 4)))),
              ElementsAre("2 ranks x 4 threads, cores 0-3 | 4-7 (pinned); oversubscribed: 8 "
                          "threads on a CPU quota of 2.5 cores, so times will be longer"));
  EXPECT_THAT(describe_threads(alike(2, within({8, 1}, on(cores(0, 8))))),
              ElementsAre("2 ranks x 4 threads, cores 0-3 | 4-7 (pinned)"));
}

TEST(DescribeThreads, SaysWhatThereIsNoRoomFor) {
  EXPECT_THAT(describe_threads(alike(1, on(cores(0, 1024)))),
              ElementsAre("1 rank x 512 threads, cores 0-1023 (not pinned); a rank can have no "
                          "more than 512 threads, not 1024: use more ranks"));
  EXPECT_THAT(describe_threads(alike(1, on(cores(0, 2), 600)))[0],
              ::testing::EndsWith("; a rank can have no more than 512 threads, not 600"));
}

/// What threads were found on counts, not what was meant.
TEST(DescribeThreads, SaysWhereThreadsRun) {
  ThreadFacts bound = on(cores(0, 2));
  bound.binders = {"OMP_PROC_BIND"};
  bound.runs_on = {0};
  EXPECT_THAT(describe_threads(alike(2, bound)),
              ElementsAre("2 ranks x 1 thread, cores 0 (binding as OMP_PROC_BIND says); "
                          "oversubscribed: 2 threads on 1 core, so times will be longer: "
                          "OMP_PROC_BIND binds the threads of all ranks alike, unset it"));
  ThreadFacts other = bound;
  other.runs_on = {1};
  EXPECT_THAT(describe_threads({{bound, other}}),
              ElementsAre("2 ranks x 1 thread, cores 0 | 1 (binding as OMP_PROC_BIND says)"));
  ThreadFacts refused = on(cores(0, 2));
  refused.runs_on = cores(0, 2);  // the system did not let it pin itself
  EXPECT_THAT(describe_threads(alike(2, refused)),
              ElementsAre("2 ranks x 1 thread, cores 0-1 (not pinned)"));
}

/// mpirun is not to blame for cores that the user has left out.
TEST(DescribeThreads, NamesWhatBindsAndWhatChoosesCores) {
  ThreadFacts placed = on({0});
  placed.binders = {"OMP_PLACES"};
  placed.chooses_cores = true;
  placed.host_cores = 2;
  placed.runs_on = {0};
  EXPECT_THAT(describe_threads(alike(1, placed)),
              ElementsAre("1 rank x 1 thread, cores 0 (binding as OMP_PLACES says)"));
  placed.binders = {"OMP_PROC_BIND", "OMP_PLACES"};
  EXPECT_THAT(describe_threads(alike(2, placed)),
              ElementsAre("2 ranks x 1 thread, cores 0 (binding as OMP_PROC_BIND and OMP_PLACES "
                          "say); oversubscribed: 2 threads on 1 core, so times will be longer: "
                          "OMP_PROC_BIND and OMP_PLACES bind the threads of all ranks alike, unset "
                          "them"));
  placed.binders = {"OMP_PLACES"};
  placed.chooses_cores = false;  // "cores", of those that mpirun has left the rank
  EXPECT_THAT(describe_threads(alike(1, placed)),
              ElementsAre("1 rank x 1 thread, cores 0 (binding as OMP_PLACES says); mpirun's "
                          "binding leaves 1 core idle, use --bind-to none"));
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
              AllOf(::testing::HasSubstr("oversubscribed: 8 threads on 1 core"),
                    ::testing::HasSubstr("14 cores idle")));
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
              ::testing::UnorderedElementsAre("2 hosts: 1 rank x 2 threads, cores 0-1 (pinned)",
                                              "2 hosts: 2 ranks x 1 thread, cores 0 | 1 (pinned)"));
  ranks[4].cores = cores(0, 4);
  EXPECT_THAT(describe_threads(ranks),
              ::testing::Contains("c: 1 rank x 4 threads, cores 0-3 (pinned)"));
}

}  // namespace
}  // namespace cadenza::app::test_threads
