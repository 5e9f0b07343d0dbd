// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "cadenza/base/error.hpp"
#include "cadenza/plan/validate.hpp"
#include "cases.hpp"
#include "oracle.hpp"
#include "unit/sanitized.hpp"

namespace cadenza::plan::test_cad {
namespace {

using test::Draw;
using test::heavy_tailed;
using test::workload;

/// Cost of the most expensive block of any document over the mean of the pool.
double one_block(const Plan& plan, std::int64_t block) {
  std::int64_t longest = 0;
  for (std::int64_t length : plan.workload.lengths) longest = std::max(longest, length);
  const std::int64_t first = std::max<std::int64_t>(0, longest - block);
  const AttentionShape& shape = plan.workload.shape;
  const Task task{0, {first, longest}, {0, longest}, {0, shape.heads}, Band::causal()};
  double total = 0;
  for (double cost : plan.cost_per_rank) total += cost;
  return forward_flops(task, shape.head_dim) / total *
         static_cast<double>(plan.workload.servers.size());
}

void expect_valid(const Plan& plan) {
  EXPECT_THAT(violations(plan), ::testing::IsEmpty());
  EXPECT_THAT(mirror_violations(plan, mirror(plan)), ::testing::IsEmpty());
}

TEST(Cad, RandomPlansAreValidAndBalanced) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const std::int64_t block = draw.of<std::int64_t>({1, 8, 16, 128});
    const Workload w = test::random_workload(draw, block);
    const double tolerance = draw.of<double>({0.0, 0.01, 0.1, 0.5, 1.0});
    const Plan plan = cad(w, block, tolerance);
    expect_valid(plan);
    expect_valid(colocated(w));
    double total = 0;
    for (double cost : plan.cost_per_rank) total += cost;
    if (total > 0) {
      EXPECT_LE(imbalance(plan), 1 + tolerance + one_block(plan, block) + 1e-9);
    }
    EXPECT_EQ(hash(plan), hash(cad(w, block, tolerance)));
  }
}

/// Cost of the most expensive block of any document.
double block_cost(const Plan& plan, std::int64_t block) {
  double total = 0;
  for (double cost : plan.cost_per_rank) total += cost;
  return one_block(plan, block) * total / static_cast<double>(plan.workload.servers.size());
}

TEST(Cad, ServersComputeInProportionToTheirCapacities) {
  config::Attention attention;
  for (std::uint64_t seed = 2000; seed < (cadenza::testing::kSanitized ? 2040 : 2200); ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    attention.block = draw.of<std::int64_t>({1, 8, 16, 128});
    attention.tolerance = draw.of<double>({0.0, 0.1, 0.5});
    attention.split_keys = draw.between(0, 1) == 1;
    Workload w = test::random_workload(draw, attention.block);
    for (int rank = 0; rank < w.ranks; ++rank) {
      w.capacities.push_back(draw.of<std::int64_t>({1, 30, 50, 100, 100, 250, 10000}));
    }
    const Plan plan = cad(w, attention);
    expect_valid(plan);
    const std::vector<double> fair = fair_costs(plan);
    double bound = 1;
    for (const Rank server : w.servers) {
      const double block =
          block_cost(plan, attention.block) / fair[static_cast<std::size_t>(server)];
      bound = std::max(bound, 1 + *attention.tolerance + block);
    }
    EXPECT_LE(imbalance(plan), bound * (1 + 1e-9));
  }
}

TEST(Cad, HalfTheCapacityGetsHalfTheWork) {
  Workload w = workload({{8192}, {4096, 4096}, {1024, 1024, 6144}});
  w.capacities = {100, 50, 100};
  const Plan plan = cad(w, 64, 0.0);
  expect_valid(plan);
  EXPECT_NEAR(plan.cost_per_rank[1] / plan.cost_per_rank[0], 0.5, 0.02);
  EXPECT_NEAR(plan.cost_per_rank[2] / plan.cost_per_rank[0], 1.0, 0.02);
  EXPECT_NEAR(imbalance(plan), 1.0, 0.02);
  EXPECT_NEAR(fair_costs(plan)[1] / fair_costs(plan)[2], 0.5, 1e-12);
}

TEST(Cad, FullCapacitiesChangeNothing) {
  config::Attention attention;
  attention.block = 8;
  attention.tolerance = 0.1;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Draw draw(seed);
    Workload w = test::random_workload(draw, 8);
    const Plan alike = cad(w, attention);
    w.capacities.assign(static_cast<std::size_t>(w.ranks), kFullCapacity);
    const Plan equal = cad(w, attention);
    EXPECT_EQ(alike.cost_per_rank, equal.cost_per_rank);
    EXPECT_EQ(alike.bytes_sent_per_rank, equal.bytes_sent_per_rank);
    EXPECT_DOUBLE_EQ(imbalance(alike), imbalance(equal));
    EXPECT_NE(hash(alike), hash(equal));
  }
}

TEST(Cad, SmallPlansComputeEveryPairOnceWhenCarriedOut) {
  for (std::uint64_t seed = 1000; seed < (cadenza::testing::kSanitized ? 1020 : 1060); ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const Workload w = test::random_workload(draw, 2);
    EXPECT_EQ(test::carry_out(cad(w, 2, 0.05)), "");
    EXPECT_EQ(test::carry_out(colocated(w)), "");
  }
}

TEST(Cad, TasksKeepToBlocks) {
  Draw draw(5);
  for (int i = 0; i < 50; ++i) {
    const Workload w = test::random_workload(draw, 16);
    for (const Stage& stage : cad(w, 16, 0.0).stages) {
      for (const PlacedTask& p : stage.tasks) {
        EXPECT_EQ(p.task.q.begin % 16, 0);
        EXPECT_TRUE(p.task.q.end % 16 == 0 ||
                    p.task.q.end == w.lengths[static_cast<std::size_t>(p.task.document)]);
        EXPECT_EQ(p.task.k, (Range{0, p.task.q.end}));
      }
    }
  }
}

TEST(Cad, DocumentsThatSpanRanksAreValidAndBalanced) {
  for (double tolerance : {0.0, 0.2}) {
    const Plan plan = cad(test::split_document(1001), 8, tolerance);
    expect_valid(plan);
    EXPECT_LE(imbalance(plan), 1 + tolerance + one_block(plan, 8));
  }
  EXPECT_EQ(test::carry_out(cad(test::split_document(50), 4, 0.0)), "");
}

TEST(Cad, HeavyTailsAreBalancedInPlaceAndOnDedicatedServers) {
  for (int ranks : {2, 8, 32}) {
    for (double tolerance : {0.0, 0.05, 0.1}) {
      for (int dedicated : {0, ranks / 2}) {
        const Workload w = workload(heavy_tailed(ranks, 32768, 7), dedicated);
        const Plan before = colocated(w);
        const Plan plan = cad(w, 128, tolerance);
        expect_valid(plan);
        EXPECT_GT(imbalance(before), w.servers.size() > 1 ? 1.2 : 0.999) << ranks;
        EXPECT_LE(imbalance(plan), 1 + tolerance + one_block(plan, 128));
        for (Rank rank = 0; dedicated > 0 && rank < ranks; ++rank) {
          EXPECT_EQ(plan.cost_per_rank[static_cast<std::size_t>(rank)], 0);
        }
      }
    }
  }
}

TEST(Cad, DeficitsAreBoundedToo) {
  for (std::uint64_t seed : {1, 2, 3}) {
    const Plan plan = cad(workload(heavy_tailed(8, 65536, seed)), 128, 0.05);
    double total = 0;
    for (double cost : plan.cost_per_rank) total += cost;
    for (double cost : plan.cost_per_rank) {
      EXPECT_GE(cost / total * 8, 1 - 0.05 - one_block(plan, 128));
    }
  }
}

TEST(Cad, ToleranceOneMovesOnlyWhatIsAboveTwiceTheMean) {
  const Plan below = cad(workload({{1900}, {1000, 400}, {1200}}), 128, 1.0);
  EXPECT_LT(imbalance(below), 2.0);
  EXPECT_EQ(below.stages.size(), 1U);
  const Workload w = workload({{4000}, {500}, {400}});
  EXPECT_GT(imbalance(colocated(w)), 2.0);
  const Plan above = cad(w, 128, 1.0);
  EXPECT_GT(above.stages.size(), 1U);
  EXPECT_LE(imbalance(above), 2.0);
}

TEST(Cad, EqualLoadsStay) {
  for (double tolerance : {0.0, 0.1}) {
    EXPECT_EQ(cad(workload({{1000, 30}, {30, 1000}, {1000, 30}}), 128, tolerance).stages.size(),
              1U);
  }
}

TEST(Cad, BytesFallWithTolerance) {
  double last = 0;
  for (double tolerance : {0.5, 0.2, 0.1, 0.05, 0.0}) {
    double bytes = 0;
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      bytes += test::total_bytes(cad(workload(heavy_tailed(16, 32768, seed)), 128, tolerance));
    }
    EXPECT_GE(bytes, last) << tolerance;
    last = bytes;
  }
}

TEST(Cad, HandlesTheSmallest) {
  expect_valid(cad(workload({{}}), 128, 0.0));
  expect_valid(cad(workload({{}, {}}, 2), 128, 0.0));
  expect_valid(cad(workload({{1}}), 128, 0.0));
  expect_valid(cad(workload({{1, 1, 1}, {}}, 3), 128, 0.0));
  expect_valid(cad(workload({{100}, {}, {}, {}, {}}), 128, 0.0));  // fewer blocks than servers
  EXPECT_EQ(cad(workload({{1, 1}, {}}), 128, 0.0).cost_per_rank[1], 4.0 * 8 * 4);
}

TEST(Cad, ResidentRowsAreNotSent) {
  const Plan plan = cad(workload({{8192}, {}, {}, {}}), 128, 0.0);
  EXPECT_EQ(plan.cost_per_rank.size(), 4U);
  for (const Move& move : plan.stages[1].moves) EXPECT_EQ(move.from, 0);
  for (const Move& move : plan.stages[2].moves) EXPECT_EQ(move.to, 0);
  EXPECT_LT(imbalance(plan), 1.02);
}

TEST(Cad, RefusesBadOptions) {
  const Workload w = workload({{100}});
  EXPECT_THROW(cad(w, 0, 0.1), Error);
  EXPECT_THROW(cad(w, 128, -0.1), Error);
  EXPECT_THROW(cad(w, 128, std::nan("")), Error);
}

double processor_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}
/// Planning takes 5 to 60 ms of a processor (bench/bench_plan measures it). This has room for
/// sanitizers and old machines.
constexpr double kNotQuick = 10.0;

TEST(Cad, ExtremesArePlannedQuickly) {
  std::vector<std::vector<std::int64_t>> tiny(4);
  tiny[0].assign(20000, 100);
  std::vector<std::vector<std::int64_t>> huge(512);
  huge[7] = {512 * 16384};
  for (const Workload& w : {workload(tiny), workload(huge)}) {
    for (config::Bound bound : {config::Bound::two_sided, config::Bound::one_sided}) {
      config::Attention attention;
      attention.bound = bound;
      attention.tolerance = 0.1;
      const double begin = processor_seconds();
      const Plan plan = cad(w, attention);
      EXPECT_LT(processor_seconds() - begin, kNotQuick);
      EXPECT_LE(imbalance(plan), bound == config::Bound::two_sided ? 1.15 : 1.5);
    }
  }
}

/// Processor seconds to plan documents of one rank on four, the least of three times.
double seconds_to_plan(std::size_t documents) {
  std::vector<std::vector<std::int64_t>> lengths(4);
  lengths[0].assign(documents, 100);
  const Workload w = workload(lengths);
  double least = kNotQuick;
  for (int again = 0; again < 3; ++again) {
    const double begin = processor_seconds();
    cad(w, 128, 0.05);
    least = std::min(least, processor_seconds() - begin);
  }
  return least;
}

TEST(Cad, TimeGrowsWithTheDocumentsNotWithTheirSquare) {
  EXPECT_LT(seconds_to_plan(64000), 8 * seconds_to_plan(16000));
}

TEST(Cad, PlansManyDocumentsQuickly) {
  Draw draw(11);
  for (int dedicated : {0, 16}) {
    std::vector<std::vector<std::int64_t>> documents(64 - static_cast<std::size_t>(dedicated));
    for (int i = 0; i < 4096; ++i) {
      documents[static_cast<std::size_t>(i) % documents.size()].push_back(
          draw.uniform() < 0.01 ? draw.between(10000, 130000) : draw.between(1, 5000));
    }
    const Workload w = workload(documents, dedicated);
    for (double tolerance : {0.0, 0.05}) {
      const double begin = processor_seconds();
      const Plan plan = cad(w, 128, tolerance);
      EXPECT_LT(processor_seconds() - begin, kNotQuick);
      EXPECT_THAT(violations(plan), ::testing::IsEmpty());
      EXPECT_LE(imbalance(plan), 1 + tolerance + one_block(plan, 128));
    }
  }
}

}  // namespace
}  // namespace cadenza::plan::test_cad
