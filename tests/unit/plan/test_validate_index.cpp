// SPDX-License-Identifier: Apache-2.0
// The rule `index`: rounds of real plans hold, and no move of them can be left out, doubled, cut or
// given to another rank.
#include <gmock/gmock.h>

#include <functional>

#include "cadenza/plan/index.hpp"
#include "cadenza/plan/predict.hpp"
#include "cadenza/plan/validate.hpp"
#include "cases.hpp"

namespace cadenza::plan::test_validate_index {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

SparseRule rule() {
  SparseRule rule;
  rule.block = 8;
  rule.columns = 12;
  rule.slashes = 4;
  rule.dense_below = 100;
  return rule;
}

SparseRule blocks() {
  SparseRule rule;
  rule.kind = SparseKind::xattention;
  rule.block = 16;
  rule.stride = 4;
  rule.threshold = 0.9;
  rule.dense_below = 100;
  return rule;
}

/// A long document on three ranks, a short one, a long one on one rank; a server.
Workload shared() {
  Workload w = test::workload({{}, {}, {}}, 1);
  w.servers = {0, 1, 2, 3};
  w.lengths = {600, 40, 200};
  w.homes = {{0, 0, {0, 100}},   {1, 0, {100, 300}}, {2, 0, {300, 570}},
             {0, 0, {570, 600}}, {1, 1, {0, 40}},    {2, 2, {0, 200}}};
  w.sparse = rule();
  weigh(w, {});
  return w;
}

Plan sample(const SparseRule& rule) {
  config::Attention attention;
  attention.block = 16;
  attention.tolerance = 0.05;
  Workload w = shared();
  w.sparse = rule;
  weigh(w, {});
  return make_plan(attention, w);
}

TEST(ValidateIndex, RealPlansHold) {
  const Plan plan = sample(rule());
  ASSERT_EQ(plan.index.size(), std::size_t{kIndexRounds});
  for (const Stage& round : plan.index) EXPECT_THAT(round.moves, Not(IsEmpty()));
  EXPECT_THAT(violations(plan), IsEmpty());
  const Plan backward = mirror(plan);
  EXPECT_THAT(mirror_violations(plan, backward), IsEmpty());
  for (std::size_t round = 0; round + 1 < backward.index.size(); ++round) {
    EXPECT_THAT(backward.index[round].moves, IsEmpty());
  }
  EXPECT_EQ(backward.index.back().moves, plan.index.back().moves);
}

TEST(ValidateIndex, BlocksAreChosenInOneRound) {
  const Plan plan = sample(blocks());
  ASSERT_EQ(plan.index.size(), std::size_t{kIndexRounds});
  EXPECT_THAT(plan.index.front().moves, Not(IsEmpty()));
  for (std::size_t round = 1; round + 1 < plan.index.size(); ++round) {
    EXPECT_THAT(plan.index[round].moves, IsEmpty());
  }
  EXPECT_THAT(violations(plan), IsEmpty());
  const Plan backward = mirror(plan);
  EXPECT_THAT(mirror_violations(plan, backward), IsEmpty());
  EXPECT_EQ(backward.index.back().moves, plan.index.back().moves);
}

TEST(ValidateIndex, MoreHoldersThanHeadsShareTheRowsOfAHead) {
  Workload w = test::workload({{}, {}, {}, {}, {}, {}, {}, {}, {}});
  w.shape.heads = 4;
  w.context = 9;
  for (const std::int64_t run : {std::int64_t{0}, std::int64_t{1}, std::int64_t{16}}) {
    w.lengths = {3001};
    w.order = run == 0 ? TokenOrder{} : TokenOrder{9, run};
    w.homes.clear();
    for (Rank rank = 0; rank < 9; ++rank) {
      w.homes.push_back({rank, 0,
                         run == 0 ? Range{rank * 3001 / 9, (rank + 1) * 3001 / 9}
                                  : stripe_tokens(w.order, 3001, rank)});
    }
    w.sparse = blocks();
    weigh(w, {});
    const IndexParts parts = index_parts(w).front();
    std::vector<std::int64_t> rows(4, 0);
    for (std::size_t n = 0; n < 9; ++n) {
      const OwnedIndex owned = owned_index(w, parts, n);
      EXPECT_EQ(owned.empty(), n == 8);
      if (owned.empty()) continue;
      EXPECT_EQ(owned.heads.size(), 1);
      EXPECT_EQ(owned.tokens.begin % 16, 0);
      rows[static_cast<std::size_t>(owned.heads.begin)] += owned.tokens.size();
      EXPECT_NEAR(allowed_pairs(owned.tokens, {0, 3001}, Band::causal()), 3001 * 3001 / 4,
                  3001 * 16);
    }
    EXPECT_THAT(rows, ElementsAre(3001, 3001, 3001, 3001));
    config::Attention attention;
    attention.placement =
        run == 0 ? config::PlacementKind::all_gather : config::PlacementKind::striped;
    EXPECT_THAT(violations(make_plan(attention, w)), IsEmpty());
  }
}

TEST(ValidateIndex, DensePlansHaveNoRounds) {
  Workload w = shared();
  w.sparse.dense_below = 1000;
  Plan plan = make_plan({}, w);
  EXPECT_THAT(plan.index, IsEmpty());
  EXPECT_THAT(violations(plan), IsEmpty());
  plan.index.resize(kIndexRounds);
  EXPECT_THAT(violations(plan), ElementsAre(HasSubstr("index: 5 rounds; valid: 0")));
}

class ValidateIndexOf : public ::testing::TestWithParam<SparseRule> {};
INSTANTIATE_TEST_SUITE_P(Kinds, ValidateIndexOf, ::testing::Values(rule(), blocks()));

TEST_P(ValidateIndexOf, EveryMoveCounts) {
  const Plan plan = sample(GetParam());
  const Plan backward = mirror(plan);
  int planted = 0;
  const auto broken = [&](const Plan& of, std::size_t round, const char* what,
                          const std::function<void(std::vector<Move>&)>& plant) {
    Plan other = of;
    plant(other.index[round].moves);
    add_totals(other);
    const auto faults = &of == &plan ? violations(other) : mirror_violations(plan, other);
    EXPECT_THAT(faults, Contains(HasSubstr("index: "))) << "round " << round << ": " << what;
    ++planted;
  };
  for (const Plan* of : {&plan, &backward}) {
    for (std::size_t round = 0; round < of->index.size(); ++round) {
      for (std::size_t i = 0; i < of->index[round].moves.size(); ++i) {
        const auto at = static_cast<std::ptrdiff_t>(i);
        const auto plant = [&](const char* what, const std::function<void(Move&)>& change) {
          broken(*of, round, what, [&](std::vector<Move>& moves) { change(moves[i]); });
        };
        broken(*of, round, "left out", [&](auto& moves) { moves.erase(moves.begin() + at); });
        broken(*of, round, "twice", [&](auto& moves) { moves.push_back(moves[i]); });
        plant("to another", [](Move& move) { move.to = (move.to + 1) % 4; });
        plant("from another", [](Move& move) { move.from = (move.from + 1) % 4; });
        plant("of a dense document", [](Move& move) { move.document = 1; });
        plant("fewer heads", [](Move& move) { --move.heads.end; });
        plant("more bytes", [](Move& move) { move.bytes += 8; });
        plant("something else", [](Move& move) { move.what = Tensor::q; });
      }
    }
  }
  EXPECT_GT(planted, 100);
}

TEST_P(ValidateIndexOf, ReusedPatternsOnlyTravel) {
  const Plan chosen = sample(GetParam());
  Workload w = chosen.workload;
  config::Attention attention;
  attention.block = 16;
  attention.tolerance = 0.05;
  w.reused = {40, 600};  // 40 is dense all the same
  const Plan plan = make_plan(attention, w);
  ASSERT_EQ(plan.index.size(), std::size_t{kIndexRounds});
  const auto of_reused = [](const Move& move) { return move.document == 0; };
  for (std::size_t round = 0; round + 1 < plan.index.size(); ++round) {
    EXPECT_TRUE(std::ranges::none_of(plan.index[round].moves, of_reused));
  }
  EXPECT_TRUE(std::ranges::any_of(plan.index.back().moves, of_reused));
  EXPECT_THAT(violations(plan), IsEmpty());
  EXPECT_NE(hash(plan), hash(chosen));
  Plan wrong = plan;
  wrong.index.front() = chosen.index.front();
  add_totals(wrong);
  EXPECT_THAT(violations(wrong), Contains(HasSubstr("index: ")));
}

TEST(ValidateIndex, TheBackwardPassMakesNoIndex) {
  const Plan plan = sample(rule());
  Plan backward = mirror(plan);
  backward.index = plan.index;
  add_totals(backward);
  EXPECT_THAT(mirror_violations(plan, backward), Contains(HasSubstr("makes no index")));
}

TEST(ValidateIndex, StripesAreObservedFromEverywhere) {
  Workload w = test::workload({{}, {}, {}});
  w.lengths = {300};
  w.context = 3;
  for (const std::int64_t run : {std::int64_t{1}, std::int64_t{16}}) {
    w.order = {3, run};
    w.homes.clear();
    for (Rank rank = 0; rank < 3; ++rank) {
      w.homes.push_back({rank, 0, stripe_tokens(w.order, 300, rank)});
    }
    w.sparse = rule();
    weigh(w, {});
    config::Attention attention;
    attention.placement = config::PlacementKind::striped;
    const Plan plan = make_plan(attention, w);
    EXPECT_THAT(violations(plan), IsEmpty());
    std::int64_t observed = 0;
    for (const IndexParts& parts : index_parts(w)) {
      for (const Home& home : parts.homes) {
        for (const Home& part : within_text(w, home, SparseRule::observed(300))) {
          observed += part.tokens.size();
          for (std::int64_t i = part.tokens.begin; i < part.tokens.end; ++i) {
            EXPECT_GE(position_of(w.order, 300, i), 300 - SparseRule::kObserved);
          }
        }
      }
    }
    EXPECT_EQ(observed, SparseRule::kObserved);
  }
}

TEST(Density, CostsFollowIt) {
  Workload w = shared();
  std::array<double, SparseDensity::kBins> share{};
  share.fill(0.25);
  w.density[0] = SparseDensity(share);
  const Task rows{0, {100, 300}, {0, 300}, {0, 4}};
  EXPECT_DOUBLE_EQ(kept_share(w, rows), 0.25);
  EXPECT_DOUBLE_EQ(place_task(w, 0, rows).cost, 0.25 * forward_flops(rows, w.shape.head_dim));
  EXPECT_DOUBLE_EQ(kept_share(w, {1, {0, 40}, {0, 40}, {0, 4}}), 1);
  const std::int64_t unit = SparseDensity::kUnit;
  EXPECT_EQ(w.weights_of(0).pairs({100, 300}), unit / 4 * w.mask_of(0).pairs({100, 300}));
  EXPECT_EQ(w.weights_of(1).pairs({0, 40}), unit * w.mask_of(1).pairs({0, 40}));
}

// Shares times pairs of 2^30 tokens are beyond 64 bits.
TEST(Density, CostsAndLoadsOfTheLongestDocumentsHold) {
  constexpr std::int64_t kLength = std::int64_t{1} << 30;
  Workload w = test::workload({{kLength}, {}, {}, {}});
  w.sparse = {.block = 64, .columns = 1024, .slashes = 152};
  weigh(w, {});
  config::Attention attention;
  attention.block = 1 << 20;
  attention.tolerance = 0.02;
  const Plan plan = make_plan(attention, w);
  EXPECT_THAT(violations(plan), IsEmpty());
  EXPECT_LE(imbalance(plan), 1.03);
  const double keys = 1024 + 2 * 152 * 64 + 32;  // of a row
  const double cost = 4.0 * w.shape.head_dim * w.shape.heads * keys * static_cast<double>(kLength);
  double sum = 0;
  for (const double of_rank : plan.cost_per_rank) sum += of_rank;
  EXPECT_NEAR(sum, cost, 0.01 * cost);
}

TEST(Density, TasksKnowTheirPartOfABlock) {
  Workload w = shared();
  const auto block = [&](int document) {
    const Range rows{0, 40};
    return place_task(w, 0, {document, rows, rows, {0, 4}}).block;
  };
  EXPECT_EQ(block(0), w.sparse.block);
  EXPECT_EQ(block(1), 0);  // dense: it is short
  w.sparse.block = 12;
  const auto striped = [&](std::int64_t run) {
    w.order = {3, run};
    return block(0);
  };
  EXPECT_EQ(striped(1), 4);  // every third token
  EXPECT_EQ(striped(6), 6);  // half of every second or third block
  EXPECT_EQ(striped(12), 12);
  EXPECT_EQ(striped(24), 12);
  w.density.clear();
  EXPECT_EQ(block(0), 0);  // a step in which all are dense
}

TEST(Density, CadBalancesWhatIsLeft) {
  Workload w = test::workload({{8192}, {8192}});
  w.sparse = rule();
  weigh(w, {});
  std::array<double, SparseDensity::kBins> share{};
  share.fill(0.1);
  w.density[0] = SparseDensity(share);
  share.fill(0.9);
  w.density[1] = SparseDensity(share);
  config::Attention attention;
  attention.block = 64;
  attention.tolerance = 0.02;
  const Plan plan = make_plan(attention, w);
  EXPECT_THAT(violations(plan), IsEmpty());
  EXPECT_NEAR(imbalance_at_home(w, cost_at_home(w)), 1.8, 0.01);
  EXPECT_LE(imbalance(plan), 1.03);
}

}  // namespace
}  // namespace cadenza::plan::test_validate_index
