// SPDX-License-Identifier: Apache-2.0
// The validator against broken plans of rings, stripes, head splits, key splits and halves.
#include <gmock/gmock.h>

#include <functional>

#include "cadenza/plan/validate.hpp"
#include "cases.hpp"

namespace cadenza::plan::test_validate_context {
namespace {

using config::PlacementKind;
using test::experiment;
using test::group_workload;

Plan sample(PlacementKind placement, int half = -1) {
  config::Experiment e = experiment(placement, 4);
  e.attention.block = 4;
  e.attention.inner_ring = placement == PlacementKind::ring ? 1 : 2;
  e.attention.head_parallel = 2;
  Workload w = group_workload(e, {{64, 3}});
  if (half >= 0) w = halves(w)[static_cast<std::size_t>(half)];
  const Plan plan = make_plan(e.attention, w);
  EXPECT_THAT(violations(plan), ::testing::IsEmpty());
  return plan;
}

void price(Plan& plan) {
  const AttentionShape& shape = plan.workload.shape;
  for (Stage& stage : plan.stages) {
    for (PlacedTask& placed : stage.tasks) {
      placed.cost = forward_flops(placed.task, shape.head_dim);
    }
    for (Move& move : stage.moves) {
      move.bytes = move_bytes(shape, move.what, move.tokens, move.heads);
    }
  }
  add_totals(plan);
}

void expect_fault(const Plan& plan, const std::string& rule,
                  const std::function<void(Plan&)>& plant) {
  Plan broken = plan;
  plant(broken);
  price(broken);
  EXPECT_THAT(violations(broken), ::testing::Contains(::testing::StartsWith(rule + ":")));
}

TEST(ValidateContext, DiagonalsAndStripes) {
  const Plan striped = sample(PlacementKind::striped);
  for (std::size_t stage = 0; stage < striped.stages.size(); ++stage) {
    for (std::size_t i = 0; i < striped.stages[stage].tasks.size(); ++i) {
      const Task& task = striped.stages[stage].tasks[i].task;
      if (task.q.size() < 2) continue;  // of one query and one key any mask is the same
      for (std::int64_t shift : {-1, 1}) {
        expect_fault(striped, "coverage",
                     [&](Plan& p) { p.stages[stage].tasks[i].task.band.high += shift; });
      }
      expect_fault(striped, "coverage",
                   [&](Plan& p) { p.stages[stage].tasks[i].task.band = Band::full(); });
    }
  }
  // The same tasks in the order of the text, and in that of other stripes.
  for (const TokenOrder order : {TokenOrder{1, 1}, {4, 4}, {2, 1}}) {
    expect_fault(striped, "coverage", [&](Plan& p) { p.workload.order = order; });
  }
  expect_fault(striped, "coverage", [](Plan& p) { p.workload.order.run = 0; });
  const Plan blocks = sample(PlacementKind::block_striped);
  expect_fault(blocks, "coverage", [](Plan& p) { p.workload.order.run = 3; });
  expect_fault(blocks, "coverage", [](Plan& p) {  // one run of queries sees a run too many
    for (PlacedTask& placed : p.stages[1].tasks) {
      if (placed.task.band.is_full()) placed.task.k.end += 4;
    }
  });
  const Plan zigzag = sample(PlacementKind::zigzag);
  expect_fault(zigzag, "coverage", [](Plan& p) { p.stages[0].tasks[0].task.band.high = -1; });
}

TEST(ValidateContext, KeysGoOnAfterTheyCame) {
  for (const PlacementKind placement :
       {PlacementKind::ring, PlacementKind::double_ring, PlacementKind::dynamic,
        PlacementKind::striped, PlacementKind::ulysses_ring}) {
    const Plan plan = sample(placement);
    expect_fault(plan, "presence", [](Plan& p) {  // sent on in the stage in which it came
      const std::size_t last = p.stages.size() - 1;
      std::size_t from = last;
      while (p.stages[from].moves.empty() || is_result(p.stages[from].moves[0].what)) --from;
      std::vector<Move>& earlier = p.stages[from - 1].moves;
      earlier.insert(earlier.end(), p.stages[from].moves.begin(), p.stages[from].moves.end());
      p.stages[from].moves.clear();
    });
    for (std::size_t stage = 1; stage < plan.stages.size(); ++stage) {
      for (std::size_t i = 0; i < plan.stages[stage].moves.size(); ++i) {
        if (is_result(plan.stages[stage].moves[i].what)) continue;
        expect_fault(plan, "presence",
                     [&](Plan& p) { p.stages[stage].moves.push_back(p.stages[stage].moves[i]); });
        expect_fault(plan, "presence", [&](Plan& p) {  // back to where it is at home
          Move move = p.stages[stage].moves[i];
          std::swap(move.from, move.to);
          p.stages.emplace_back().moves.push_back(move);
        });
      }
    }
  }
}

/// Whether a rank has a row of K at home or receives it.
bool has_key(const Plan& plan, Rank rank, std::int64_t token, Range heads) {
  const Range row{token, token + 1};
  for (const Home& home : plan.workload.homes) {
    if (home.rank == rank && home.tokens.contains(row)) return true;
  }
  for (const Stage& stage : plan.stages) {
    for (const Move& move : stage.moves) {
      const bool key = move.what == Tensor::k && move.to == rank;
      if (key && move.tokens.contains(row) && move.heads.overlaps(heads)) return true;
    }
  }
  return false;
}

TEST(ValidateContext, NothingTravelsThatNobodyReads) {
  for (const PlacementKind placement :
       {PlacementKind::all_gather, PlacementKind::ring, PlacementKind::zigzag,
        PlacementKind::striped, PlacementKind::double_ring, PlacementKind::dynamic,
        PlacementKind::ulysses_ring, PlacementKind::cad}) {
    SCOPED_TRACE(static_cast<int>(placement));
    config::Experiment e = experiment(placement, 4);
    e.attention.kind = config::AttentionKind::window;
    e.attention.window = 3;
    e.attention.block = 4;
    e.attention.inner_ring = placement == PlacementKind::ring ? 1 : 2;
    e.attention.head_parallel = 2;
    const Plan plan = make_plan(e.attention, group_workload(e, {{64}}));
    ASSERT_THAT(violations(plan), ::testing::IsEmpty());
    int planted = 0;
    for (const Home& home : plan.workload.homes) {
      for (Rank to = 0; to < 4; ++to) {
        const Range row{home.tokens.begin, home.tokens.begin + 1};
        if (has_key(plan, to, row.begin, {0, 2})) continue;
        ++planted;
        const auto plant = [&](Plan broken) {
          broken.stages.front().moves.push_back(
              make_move(plan.workload.shape, home.rank, to, Tensor::k, 0, row, {0, 2}));
          add_totals(broken);
          return broken;
        };
        const auto only = [](const std::string& rule) {
          return ::testing::AllOf(
              ::testing::Not(::testing::IsEmpty()),
              ::testing::Each(::testing::StartsWith(rule + ": K of document 0")));
        };
        EXPECT_THAT(violations(plant(plan)), only("need"));
        EXPECT_THAT(mirror_violations(plan, plant(mirror(plan))), only("mirror: need"));
      }
    }
    EXPECT_GT(planted, 0);
  }
}

TEST(ValidateContext, PartsOfKeysAreNeededOnce) {
  Plan plan = sample(PlacementKind::ring);
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const auto tasks = static_cast<std::ptrdiff_t>(plan.stages[stage].tasks.size());
    for (std::ptrdiff_t i = 0; i < tasks; ++i) {
      expect_fault(plan, "coverage", [&](Plan& p) {
        p.stages[stage].tasks.erase(p.stages[stage].tasks.begin() + i);
      });
      expect_fault(plan, "coverage", [&](Plan& p) {
        std::vector<PlacedTask>& list = p.stages[stage].tasks;
        list.push_back(list[static_cast<std::size_t>(i)]);
      });
    }
  }
  expect_fault(plan, "coverage", [](Plan& p) {  // one part twice, an equal one not at all
    std::vector<PlacedTask>& tasks = p.stages[1].tasks;
    tasks[1].task.k = p.stages[2].tasks[0].task.k;
    tasks[1].task.q = p.stages[2].tasks[0].task.q;
  });
}

TEST(ValidateContext, TheFirstHalfReadsNoKeysOfTheSecond) {
  const Plan plan = sample(PlacementKind::zigzag, 0);
  const std::int64_t cut = plan.workload.queries[0].end;
  ASSERT_LT(cut, 64);
  expect_fault(plan, "presence", [&](Plan& p) {
    for (PlacedTask& placed : p.stages[0].tasks) {
      if (placed.task.document == 0 && placed.task.k.end == cut) placed.task.k.end = cut + 1;
    }
  });
}

TEST(ValidateContext, QueriesOfTheOtherHalfAreNotComputed) {
  for (int half : {0, 1}) {
    const Plan plan = sample(PlacementKind::ring, half);
    const Plan other = sample(PlacementKind::ring, 1 - half);
    for (const Stage& stage : other.stages) {
      for (const PlacedTask& placed : stage.tasks) {
        expect_fault(plan, "coverage", [&](Plan& p) { p.stages.back().tasks.push_back(placed); });
      }
    }
    expect_fault(plan, "merging", [&](Plan& p) { p.merges.push_back(other.merges.front()); });
    expect_fault(plan, "coverage", [&](Plan& p) { p.workload.queries = other.workload.queries; });
    expect_fault(plan, "coverage", [](Plan& p) { p.workload.queries.clear(); });
    expect_fault(plan, "coverage", [](Plan& p) { p.workload.queries.pop_back(); });
    expect_fault(plan, "coverage", [](Plan& p) { p.workload.queries[0] = {1, 5}; });
    expect_fault(plan, "coverage", [](Plan& p) { p.workload.queries[0] = {0, 99}; });
  }
}

// No part of a plan of any placement can be left out, doubled or given to another rank.
TEST(ValidateContext, EveryElementCounts) {
  for (const PlacementKind placement :
       {PlacementKind::ring, PlacementKind::striped, PlacementKind::ulysses,
        PlacementKind::ulysses_ring, PlacementKind::double_ring, PlacementKind::dynamic}) {
    const Plan plan = sample(placement);
    const Plan backward = mirror(plan);
    const auto broken = [&](const Plan& good, const std::function<void(Plan&)>& plant) {
      Plan other = good;
      plant(other);
      add_totals(other);
      const bool forward = &good == &plan;
      EXPECT_THAT(forward ? violations(other) : mirror_violations(plan, other),
                  ::testing::Not(::testing::IsEmpty()))
          << static_cast<int>(placement);
    };
    for (const Plan* good : {&plan, &backward}) {
      for (std::size_t s = 0; s < good->stages.size(); ++s) {
        for (std::size_t i = 0; i < good->stages[s].moves.size(); ++i) {
          const auto at = static_cast<std::ptrdiff_t>(i);
          broken(*good, [&](Plan& p) { p.stages[s].moves.erase(p.stages[s].moves.begin() + at); });
          broken(*good, [&](Plan& p) { p.stages[s].moves.push_back(p.stages[s].moves[i]); });
          broken(*good, [&](Plan& p) { p.stages[s].moves[i].bytes += 4; });
        }
        for (std::size_t i = 0; i < good->stages[s].tasks.size(); ++i) {
          broken(*good, [&](Plan& p) {
            Rank& server = p.stages[s].tasks[i].server;
            server = (server + 1) % 4;
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace cadenza::plan::test_validate_context
