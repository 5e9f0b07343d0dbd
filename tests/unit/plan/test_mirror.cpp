// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <functional>
#include <map>

#include "cadenza/plan/validate.hpp"
#include "cases.hpp"

namespace cadenza::plan::test_mirror {
namespace {

using test::workload;

Plan sample() {
  return cad(workload({{900, 17}, {64}, {5}}), 16, 0.0);
}

using Sums = std::map<std::tuple<Rank, Rank, Tensor>, std::int64_t>;
Sums rows(const Plan& plan) {
  Sums sums;
  for (const Stage& stage : plan.stages) {
    for (const Move& move : stage.moves) {
      sums[{move.from, move.to, move.what}] += move.tokens.size() * move.heads.size();
    }
  }
  return sums;
}

TEST(Mirror, MovesTheSameRowsThereAndBack) {
  const Plan forward = sample();
  const Plan backward = mirror(forward);
  Sums expected;
  for (const auto& [key, count] : rows(forward)) {
    const auto& [from, to, what] = key;
    if (what == Tensor::q) {
      for (Tensor input : {Tensor::q, Tensor::dout, Tensor::lse, Tensor::delta}) {
        expected[{from, to, input}] = count;
      }
      expected[{to, from, Tensor::dq}] = count;
    }
    if (what == Tensor::k || what == Tensor::v) {
      expected[{from, to, what}] = count;
      expected[{to, from, what == Tensor::k ? Tensor::dk : Tensor::dv}] = count;
    }
  }
  EXPECT_EQ(rows(backward), expected);
  EXPECT_EQ(backward.stages.size(), 3U);
  EXPECT_TRUE(backward.merges.empty());
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_DOUBLE_EQ(backward.cost_per_rank[rank], 2.5 * forward.cost_per_rank[rank]);
  }
  EXPECT_NE(hash(forward), hash(backward));
}

TEST(Mirror, OfALocalPlanIsLocal) {
  const Plan backward = mirror(colocated(workload({{30}, {4, 5}})));
  ASSERT_EQ(backward.stages.size(), 1U);
  EXPECT_TRUE(backward.stages[0].moves.empty());
}

TEST(Mirror, FaultsAreFound) {
  const Plan forward = sample();
  const Plan good = mirror(forward);
  ASSERT_THAT(mirror_violations(forward, good), ::testing::IsEmpty());
  const auto broken = [&](const std::function<void(Plan&)>& plant, bool totals = true) {
    Plan other = good;
    plant(other);
    if (totals) add_totals(other);
    EXPECT_THAT(mirror_violations(forward, other),
                ::testing::Contains(::testing::StartsWith("mirror:")));
  };
  // Every move: dK, dV, dQ home, inputs there.
  for (std::size_t s = 0; s < good.stages.size(); ++s) {
    for (std::size_t i = 0; i < good.stages[s].moves.size(); ++i) {
      const auto at = static_cast<std::ptrdiff_t>(i);
      broken([&](Plan& p) { p.stages[s].moves.erase(p.stages[s].moves.begin() + at); });
      broken([&](Plan& p) { p.stages[s].moves.push_back(p.stages[s].moves[i]); });
      broken([&](Plan& p) { p.stages[s].moves[i].to = (p.stages[s].moves[i].to + 1) % 3; });
      broken([&](Plan& p) { p.stages[s].moves[i].tokens.end -= 1; });
      broken([&](Plan& p) { p.stages[s].moves[i].heads.end -= 1; });
    }
    for (std::size_t i = 0; i < good.stages[s].tasks.size(); ++i) {
      broken([&](Plan& p) { p.stages[s].tasks[i].server = (p.stages[s].tasks[i].server + 1) % 3; });
      broken([&](Plan& p) { p.stages[s].tasks.push_back(p.stages[s].tasks[i]); });
    }
  }
  broken([](Plan& p) { p.stages[0].tasks.pop_back(); });
  broken([](Plan& p) { p.stages[1].tasks[0].task.k.end -= 1; });
  broken([](Plan& p) { p.stages[1].moves[0].what = Tensor::o; });
  broken([](Plan& p) { std::swap(p.stages[1].moves, p.stages[2].moves); });
  broken([](Plan& p) { p.merges.push_back({0, 0, {0, 1}, {0, 1}, {0}}); });
  broken([](Plan& p) { p.workload.lengths[0] += 1; });
  broken([](Plan& p) { p.workload.shape.head_dim += 1; });
  broken([](Plan& p) { p.stages[0].tasks[0].cost /= 2.5; });
  broken([](Plan& p) { p.stages[1].moves[0].bytes += 4; });
  broken([](Plan& p) { p.cost_per_rank[0] += 99; }, false);
  broken([](Plan& p) { p.bytes_sent_per_rank[0] += 1; }, false);
  // The forward plan is not its own mirror.
  EXPECT_THAT(mirror_violations(forward, forward), ::testing::Not(::testing::IsEmpty()));
}

}  // namespace
}  // namespace cadenza::plan::test_mirror
