// SPDX-License-Identifier: Apache-2.0
// The validator against broken plans: every rule, every clause, and every single element of real
// plans.
#include <gmock/gmock.h>

#include <functional>

#include "cadenza/base/error.hpp"
#include "cadenza/plan/validate.hpp"
#include "cases.hpp"
#include "oracle.hpp"

namespace cadenza::plan::test_validate {
namespace {

using test::Draw;
using test::workload;

Plan sample() {
  Plan plan = cad(workload({{900, 17}, {64}, {5}}), 16, 0.0);
  EXPECT_EQ(plan.stages.size(), 3U);
  EXPECT_THAT(violations(plan), ::testing::IsEmpty());
  return plan;
}

PlacedTask placed(Rank server, const Task& task, const AttentionShape& shape) {
  return {server, task, forward_flops(task, shape.head_dim)};
}

Move moved(Rank from, Rank to, Tensor what, Range tokens, Range heads,
           const AttentionShape& shape) {
  return {from, to, what, 0, tokens, heads, move_bytes(shape, what, tokens, heads)};
}

/// One document on rank 0; rank 0 takes the first half of the keys of every query, rank 1 the
/// second, with one rectangle below the diagonal as a `full` task.
Plan key_split() {
  Plan plan;
  plan.workload = workload({{16}, {}});
  const AttentionShape shape = plan.workload.shape;
  const Range all{0, 4};
  plan.stages.resize(3);
  plan.stages[0].tasks = {placed(0, {0, {0, 8}, {0, 8}, all, Band::causal()}, shape),
                          placed(0, {0, {8, 16}, {0, 8}, all, Band::full()}, shape)};
  plan.stages[1].moves = {moved(0, 1, Tensor::q, {8, 16}, all, shape),
                          moved(0, 1, Tensor::k, {8, 16}, {0, 2}, shape),
                          moved(0, 1, Tensor::v, {8, 16}, {0, 2}, shape)};
  plan.stages[1].tasks = {placed(1, {0, {8, 16}, {8, 16}, all, Band::causal()}, shape)};
  plan.stages[2].moves = {moved(1, 0, Tensor::o, {8, 16}, all, shape),
                          moved(1, 0, Tensor::lse, {8, 16}, all, shape)};
  plan.merges = {{0, 0, {0, 8}, all, {0}}, {0, 0, {8, 16}, all, {0, 1}}};
  add_totals(plan);
  return plan;
}

/// Ulysses-like: rank 1 takes the upper half of the heads.
Plan head_split() {
  Plan plan;
  plan.workload = workload({{16}, {}});
  const AttentionShape shape = plan.workload.shape;
  plan.stages.resize(3);
  plan.stages[0].tasks = {placed(0, {0, {0, 16}, {0, 16}, {0, 2}, Band::causal()}, shape)};
  plan.stages[1].moves = {moved(0, 1, Tensor::q, {0, 16}, {2, 4}, shape),
                          moved(0, 1, Tensor::k, {0, 16}, {1, 2}, shape),
                          moved(0, 1, Tensor::v, {0, 16}, {1, 2}, shape)};
  plan.stages[1].tasks = {placed(1, {0, {0, 16}, {0, 16}, {2, 4}, Band::causal()}, shape)};
  plan.stages[2].moves = {moved(1, 0, Tensor::o, {0, 16}, {2, 4}, shape),
                          moved(1, 0, Tensor::lse, {0, 16}, {2, 4}, shape)};
  plan.merges = {{0, 0, {0, 16}, {0, 2}, {0}}, {0, 0, {0, 16}, {2, 4}, {1}}};
  add_totals(plan);
  return plan;
}

bool ranks_exist(const Plan& plan) {
  const auto exists = [&](Rank rank) { return rank >= 0 && rank < plan.workload.ranks; };
  for (const Stage& stage : plan.stages) {
    for (const Move& move : stage.moves) {
      if (!exists(move.from)) return false;
    }
    for (const PlacedTask& task : stage.tasks) {
      if (!exists(task.server)) return false;
    }
  }
  return true;
}

/// Plants a fault, brings the totals back in line, expects the rule to notice.
void expect_fault(const Plan& plan, const std::string& rule,
                  const std::function<void(Plan&)>& plant) {
  Plan broken = plan;
  plant(broken);
  if (rule != "totals" && ranks_exist(broken)) add_totals(broken);
  EXPECT_THAT(violations(broken), ::testing::Contains(::testing::StartsWith(rule + ":")));
}

TEST(Validate, AcceptsKeyAndHeadSplits) {
  for (const Plan& plan : {key_split(), head_split()}) {
    EXPECT_EQ(test::carry_out(plan), "");
    EXPECT_THAT(violations(plan), ::testing::IsEmpty());
    EXPECT_THAT(mirror_violations(plan, mirror(plan)), ::testing::IsEmpty());
  }
}

TEST(Validate, CoverageFaults) {
  const Plan plan = sample();
  const std::string rule = "coverage";
  expect_fault(plan, rule, [](Plan& p) { p.stages[0].tasks.pop_back(); });
  expect_fault(plan, rule, [](Plan& p) { p.stages[0].tasks.push_back(p.stages[0].tasks[0]); });
  expect_fault(plan, rule, [](Plan& p) { p.stages[0].tasks[0].task.q.end -= 1; });
  expect_fault(plan, rule, [](Plan& p) { p.stages[1].tasks[0].task.q.begin -= 1; });
  expect_fault(plan, rule, [](Plan& p) { p.stages[1].tasks[0].task.k.end -= 1; });
  expect_fault(plan, rule, [](Plan& p) { p.stages[1].tasks[0].task.k.begin += 1; });
  expect_fault(plan, rule, [](Plan& p) { p.stages[1].tasks[0].task.heads.end -= 1; });
  expect_fault(plan, rule, [](Plan& p) { p.stages[1].tasks[0].task.heads.end += 1; });
  expect_fault(plan, rule, [](Plan& p) { p.stages[1].tasks[0].task.heads.begin -= 1; });
  expect_fault(plan, rule, [](Plan& p) { p.stages[1].tasks[0].task.band = Band::full(); });
  expect_fault(plan, rule, [](Plan& p) { p.stages[1].tasks[0].task.document = 99; });
  expect_fault(plan, rule, [](Plan& p) { p.stages[1].tasks[0].task.document = -1; });
  expect_fault(plan, rule, [](Plan& p) { p.stages[1].tasks[0].task.q.end = 901; });
  expect_fault(plan, rule, [](Plan& p) { p.stages[1].tasks[0].task.q = {16, 16}; });
  expect_fault(plan, rule, [](Plan& p) { p.stages[1].tasks[0].task.k = {-1, 16}; });
}

// An omission and a doubling of the same area: sums alone would not see it.
TEST(Validate, CoverageSeesBeyondTheSum) {
  expect_fault(head_split(), "coverage", [](Plan& p) {
    p.stages[1].tasks[0].task.heads = {1, 3};
    p.stages[1].moves[0].heads = {1, 3};
  });
  Plan plan = colocated(workload({{8, 8}}));
  plan.stages[0].tasks[1] = plan.stages[0].tasks[0];
  EXPECT_THAT(violations(plan), ::testing::Contains(::testing::HasSubstr("computed twice")));
}

TEST(Validate, CoverageEqualsCountingOnRandomTasks) {
  const AttentionShape shape{2, 1, 1, 4};
  int valid = 0;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    Draw draw(seed);
    const std::int64_t n = draw.between(1, 6);
    Plan plan;
    plan.workload = workload({{n}}, 0, shape);
    plan.stages.resize(1);
    // Cut the square at a random corner: four rectangles that cover it, then perhaps disturb one.
    const std::int64_t a = draw.between(0, n);
    const std::int64_t b = draw.between(0, n);
    const std::int64_t h = draw.between(0, 2);
    for (Range heads : {Range{0, h}, Range{h, 2}}) {
      for (Range q : {Range{0, a}, Range{a, n}}) {
        for (Range k : {Range{0, b}, Range{b, n}}) {
          if (q.empty() || k.empty() || heads.empty()) continue;
          const bool below = k.end <= q.begin + 1 && draw.uniform() < 0.5;
          plan.stages[0].tasks.push_back(
              placed(0, {0, q, k, heads, below ? Band::full() : Band::causal()}, shape));
        }
      }
    }
    if (draw.uniform() < 0.7) {
      Task& task = plan.stages[0]
                       .tasks[static_cast<std::size_t>(draw.between(
                           0, static_cast<std::int64_t>(plan.stages[0].tasks.size()) - 1))]
                       .task;
      Range& range = *draw.of(std::vector<Range*>{&task.q, &task.k, &task.heads});
      const std::int64_t limit = &range == &task.heads ? 2 : n;
      const Range other{draw.between(0, limit - 1), limit};
      range = draw.uniform() < 0.5 ? other : Range{0, draw.between(1, limit)};
      if (draw.uniform() < 0.2) task.band = Band::full();
    }
    bool exact = true;
    for (std::int64_t head = 0; head < 2; ++head) {
      for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          int count = 0;
          for (const PlacedTask& p : plan.stages[0].tasks) {
            const Task& t = p.task;
            count += t.heads.contains({head, head + 1}) && t.q.contains({i, i + 1}) &&
                     t.k.contains({j, j + 1}) && t.band.sees(i, j);
          }
          exact = exact && count == (j <= i ? 1 : 0);
        }
      }
    }
    const auto faults = violations(plan);
    const bool complains = std::any_of(faults.begin(), faults.end(), [](const std::string& line) {
      return line.starts_with("coverage:");
    });
    EXPECT_EQ(complains, !exact) << "seed " << seed;
    valid += exact;
  }
  EXPECT_GT(valid, 800);
  EXPECT_LT(valid, 3200);
}

TEST(Validate, PresenceFaults) {
  const Plan plan = sample();
  const std::string rule = "presence";
  const auto change = [&](const std::function<void(Move&)>& edit) {
    expect_fault(plan, rule, [&](Plan& p) { edit(p.stages[1].moves[0]); });
  };
  change([](Move& m) { m.from = m.to; });
  change([](Move& m) { std::swap(m.from, m.to); });
  change([](Move& m) { m.from = 3; });
  change([](Move& m) { m.to = -1; });
  change([](Move& m) { m.tokens.end -= 1; });
  change([](Move& m) { m.tokens.end = 4000; });
  change([](Move& m) { m.tokens = {3, 3}; });
  change([](Move& m) { m.heads.begin += 1; });
  change([](Move& m) { m.heads.end += 1; });
  change([](Move& m) { m.document = 1; });
  change([](Move& m) { m.document = 7; });
  change([](Move& m) { m.what = Tensor::dout; });
  change([](Move& m) { m.what = Tensor::dk; });
  expect_fault(plan, rule, [](Plan& p) { p.stages[1].tasks[0].server = 3; });
  expect_fault(plan, rule, [](Plan& p) { p.stages[1].tasks[0].server = -2; });
  expect_fault(plan, rule, [](Plan& p) {  // a rank, but no server
    p.workload.servers = {0, 1};
  });
  expect_fault(plan, rule, [](Plan& p) { p.workload.servers = {1, 0, 2}; });
  expect_fault(plan, rule, [](Plan& p) {  // inputs come a stage late
    p.stages[2].moves.insert(p.stages[2].moves.end(), p.stages[1].moves.begin(),
                             p.stages[1].moves.end());
    p.stages[1].moves.clear();
  });
  expect_fault(plan, rule, [](Plan& p) {  // the task runs before its inputs
    std::swap(p.stages[0].tasks, p.stages[1].tasks);
  });
  expect_fault(plan, rule, [](Plan& p) {  // results leave before they are made
    std::swap(p.stages[0].moves, p.stages[2].moves);
  });
  expect_fault(plan, rule, [](Plan& p) {  // results of rows that were not computed there
    p.stages[2].moves[0].tokens = {0, 900};
  });
  expect_fault(plan, rule, [](Plan& p) { p.workload.homes.pop_back(); });
  expect_fault(plan, rule, [](Plan& p) { p.workload.homes[0].tokens.end -= 1; });
  expect_fault(plan, rule, [](Plan& p) { p.workload.homes.push_back(p.workload.homes[0]); });
  expect_fault(plan, rule, [](Plan& p) { p.workload.homes[0].rank = 8; });
  expect_fault(plan, rule, [](Plan& p) { p.workload.shape.kv_heads = 3; });
}

TEST(Validate, MergingFaults) {
  const std::string rule = "merging";
  for (const Plan& plan : {sample(), key_split(), head_split()}) {
    expect_fault(plan, rule, [](Plan& p) { p.stages[2].moves.pop_back(); });
    expect_fault(plan, rule, [](Plan& p) { p.stages[2].moves.erase(p.stages[2].moves.begin()); });
    expect_fault(plan, rule, [](Plan& p) { p.stages[2].moves.push_back(p.stages[2].moves[0]); });
    expect_fault(plan, rule, [](Plan& p) { p.stages[2].moves[0].what = Tensor::lse; });
    expect_fault(plan, rule, [](Plan& p) { p.stages[2].moves[0].tokens.begin += 1; });
    expect_fault(plan, rule, [](Plan& p) { p.stages[2].moves[0].heads.end -= 1; });
    expect_fault(plan, rule, [](Plan& p) { p.stages.pop_back(); });
    expect_fault(plan, rule, [](Plan& p) { p.merges.pop_back(); });
    expect_fault(plan, rule, [](Plan& p) { p.merges.push_back(p.merges[0]); });
    expect_fault(plan, rule, [](Plan& p) { p.merges[0].owner = 1; });
    expect_fault(plan, rule, [](Plan& p) { p.merges[0].owner = 77; });
    expect_fault(plan, rule, [](Plan& p) { p.merges[0].document = -1; });
    expect_fault(plan, rule, [](Plan& p) { p.merges[0].tokens.end -= 1; });
    expect_fault(plan, rule, [](Plan& p) { p.merges[0].heads.end -= 1; });
    expect_fault(plan, rule, [](Plan& p) { p.merges[0].heads.end += 9; });
    expect_fault(plan, rule, [](Plan& p) { p.merges.back().contributors.clear(); });
    expect_fault(plan, rule, [](Plan& p) { p.merges.back().contributors.push_back(5); });
  }
  expect_fault(sample(), rule, [](Plan& p) {  // to a rank that does not own the queries
    Move& move = p.stages[2].moves[0];
    move.to = move.from == 1 ? 2 : 1;
  });
}

TEST(Validate, TotalsFaults) {
  const Plan plan = sample();
  const std::string rule = "totals";
  expect_fault(plan, rule, [](Plan& p) { p.stages[0].tasks[0].cost *= 1.000001; });
  expect_fault(plan, rule, [](Plan& p) { p.stages[1].moves[0].bytes += 1; });
  expect_fault(plan, rule, [](Plan& p) { p.cost_per_rank[1] += 100; });
  expect_fault(plan, rule, [](Plan& p) { p.bytes_sent_per_rank[0] -= 1; });
  expect_fault(plan, rule, [](Plan& p) { p.cost_per_rank.pop_back(); });
  expect_fault(plan, rule, [](Plan& p) { p.bytes_sent_per_rank.push_back(0); });
  expect_fault(plan, rule, [](Plan& p) { p.workload.shape.accumulator_bytes = 8; });
  expect_fault(plan, rule, [](Plan& p) {  // sums in less than what they add up
    p.workload.shape.accumulator_bytes = 2;
    for (Stage& stage : p.stages) {
      for (Move& move : stage.moves) {
        if (move.what == Tensor::lse) move.bytes /= 2;
      }
    }
    add_totals(p);
  });
}

// No part of a real plan can be left out, doubled or given to another rank.
TEST(Validate, EveryElementCounts) {
  const Plan plan = sample();
  const auto broken = [&](const std::function<void(Plan&)>& plant) {
    Plan other = plan;
    plant(other);
    add_totals(other);
    EXPECT_THAT(violations(other), ::testing::Not(::testing::IsEmpty()));
  };
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (std::size_t i = 0; i < plan.stages[s].moves.size(); ++i) {
      const auto at = static_cast<std::ptrdiff_t>(i);
      broken([&](Plan& p) { p.stages[s].moves.erase(p.stages[s].moves.begin() + at); });
      broken([&](Plan& p) { p.stages[s].moves.push_back(p.stages[s].moves[i]); });
      broken([&](Plan& p) { p.stages[s].moves[i].to = (p.stages[s].moves[i].to + 1) % 3; });
      broken([&](Plan& p) { p.stages[s].moves[i].from = (p.stages[s].moves[i].from + 1) % 3; });
      broken([&](Plan& p) { p.stages[s].moves[i].tokens.begin += 1; });
    }
    for (std::size_t i = 0; i < plan.stages[s].tasks.size(); ++i) {
      const auto at = static_cast<std::ptrdiff_t>(i);
      broken([&](Plan& p) { p.stages[s].tasks.erase(p.stages[s].tasks.begin() + at); });
      broken([&](Plan& p) { p.stages[s].tasks.push_back(p.stages[s].tasks[i]); });
      broken([&](Plan& p) { p.stages[s].tasks[i].server = (p.stages[s].tasks[i].server + 1) % 3; });
    }
  }
  for (std::size_t i = 0; i < plan.merges.size(); ++i) {
    const auto at = static_cast<std::ptrdiff_t>(i);
    broken([&](Plan& p) { p.merges.erase(p.merges.begin() + at); });
    broken([&](Plan& p) { p.merges.push_back(p.merges[i]); });
  }
}

TEST(Validate, RequireValidThrowsTheFirstFault) {
  const Plan plan = sample();
  const Plan backward = mirror(plan);
  EXPECT_NO_THROW(require_valid(plan, backward));
  Plan broken = plan;
  broken.stages[0].tasks.pop_back();
  add_totals(broken);
  try {
    require_valid(broken, backward);
    FAIL() << "a broken plan passed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("coverage"));
  }
  Plan lost = backward;
  lost.stages.pop_back();
  add_totals(lost);
  EXPECT_THROW(require_valid(plan, lost), Error);
}

}  // namespace
}  // namespace cadenza::plan::test_validate
