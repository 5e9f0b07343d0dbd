// SPDX-License-Identifier: Apache-2.0
// Which layers follow plans of their own, and that a step's operations follow theirs.
#include "cadenza/program/layer_classes.hpp"

#include <gmock/gmock.h>

#include <numeric>
#include <set>

#include "cadenza/plan/validate.hpp"
#include "unit/program/support.hpp"
#include "unit/tiny_model.hpp"

namespace cadenza::program::test_layer_classes {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<std::int64_t> kLengths = {512, 100};
constexpr auto kFull = config::AttentionKind::full;
constexpr auto kSparse = config::AttentionKind::vertical_slash;

config::Experiment sparse_experiment(int layers) {
  config::Experiment e;
  e.model = tiny_model(layers);
  e.model.kv_heads = 4;
  e.parallel.data = 2;
  e.batch.tokens = 2 * 2 * 1024;
  e.batch.microbatch = 1024;
  e.data.max_document = 1024;
  e.attention.kind = config::AttentionKind::vertical_slash;
  e.attention.overlap = config::Overlap::none;
  e.attention.sparse.block = 8;
  e.attention.sparse.columns = 8;
  e.attention.sparse.slashes = 2;
  e.attention.sparse.sinks = e.attention.sparse.window = 0;
  e.attention.sparse.dense_below = 64;
  e.attention.block = 16;
  e.attention.tolerance = 0.02;
  return e;
}

/// Steps in which layer i kept the share kept[i] of all rows.
SparseEstimate estimate_of(const std::vector<double>& kept) {
  std::map<SparsePlace, SparseEstimate::Shares> shares;
  for (std::size_t layer = 0; layer < kept.size(); ++layer) {
    for (const std::int64_t length : {100, 512, 900}) {
      shares[SparsePlace::of(static_cast<int>(layer), length)].fill(kept[layer]);
    }
  }
  return SparseEstimate(shares);
}

std::vector<std::vector<int>> classes_of(const config::Experiment& e,
                                         const std::vector<double>& kept) {
  std::vector<std::vector<int>> classes;
  for (const LayerClass& each : layer_classes(e, kLengths, estimate_of(kept))) {
    classes.push_back(each.layers);
  }
  return classes;
}

TEST(LayerClasses, AlikeLayersHaveOnePlan) {
  const config::Experiment e = sparse_experiment(4);
  EXPECT_THAT(classes_of(e, {}), ElementsAre(IsEmpty()));
  EXPECT_THAT(classes_of(e, {0.2, 0.2, 0.2, 0.2}), ElementsAre(IsEmpty()));
  EXPECT_THAT(classes_of(e, {0.2, 0.24, 0.22, 0.21}), ElementsAre(IsEmpty()));
}

TEST(LayerClasses, OthersAreSplitWhereTheyDiffer) {
  const config::Experiment e = sparse_experiment(4);
  EXPECT_THAT(classes_of(e, {0.5, 0.2, 0.48, 0.21}),
              ElementsAre(std::vector{1, 3}, std::vector{0, 2}));
  EXPECT_THAT(classes_of(e, {0.2, 0.2, 0.2, 0.26}),
              ElementsAre(std::vector{0, 1, 2}, std::vector{3}));
  EXPECT_THAT(classes_of(e, {0.4, 0.1, 0.2, 0.7}),  // the narrowest step stays
              ElementsAre(std::vector{1}, std::vector{2}, std::vector{0, 3}));
}

TEST(LayerClasses, ManyGradualLayersAreThreeClasses) {
  const config::Experiment e = sparse_experiment(12);
  std::vector<double> kept;
  for (int layer = 0; layer < 12; ++layer) kept.push_back(0.05 * std::pow(1.2, layer));
  const auto classes = classes_of(e, kept);
  ASSERT_EQ(classes.size(), 3U);
  std::set<int> all;
  for (const auto& layers : classes) all.insert(layers.begin(), layers.end());
  EXPECT_EQ(all.size(), 12U);
}

TEST(LayerClasses, FullLayersAreAlwaysApart) {
  config::Experiment e = sparse_experiment(4);
  e.attention.layers = {kFull, kSparse};
  const auto classes = layer_classes(e, kLengths, {});
  ASSERT_EQ(classes.size(), 2U);
  EXPECT_TRUE(classes[0].full);
  EXPECT_THAT(classes[0].layers, ElementsAre(0, 2));
  EXPECT_FALSE(classes[1].full);
  EXPECT_THAT(classes[1].layers, ElementsAre(1, 3));
  e.attention.layers = {kFull};
  EXPECT_EQ(layer_classes(e, kLengths, {}).size(), 1U);
}

TEST(LayerClasses, DenseStepsAndOtherKindsHaveNone) {
  config::Experiment e = sparse_experiment(2);
  e.attention.sparse.dense_below = 4096;  // longer than all documents
  EXPECT_THAT(classes_of(e, {0.1, 0.9}), ElementsAre(IsEmpty()));
  e = sparse_experiment(2);
  e.attention.sparse = {};
  e.attention.kind = config::AttentionKind::full;
  EXPECT_THAT(classes_of(e, {0.1, 0.9}), ElementsAre(IsEmpty()));
}

/// Heads of a row are split over tensor ranks: it takes as long as the one whose heads keep most.
TEST(LayerClasses, BudgetsOfHeadsAreThoseOfTheFullestTensorRank) {
  config::Experiment e = sparse_experiment(1);
  e.attention.sparse.heads = {{{64, 2, 0}, {8, 2, 0}, {16, 2, 0}, {16, 2, 0}}};
  const auto share = [](std::int64_t columns) {  // of the last rows of 512
    return SparseDensity::of_budgets({8, columns, 2, 0, 0, 0, 0}, 512).share(31);
  };
  const auto found = [&] {
    const SparseEstimate estimate = estimate_of_budgets(e, kLengths);
    return static_cast<double>(estimate.density(e.attention.sparse_rule(), 512, {}).share(31));
  };
  EXPECT_NEAR(found(), static_cast<double>(share(64) + share(8) + 2 * share(16)) / 4, 1);
  e.parallel.tensor = 2;
  EXPECT_NEAR(found(), static_cast<double>(share(64) + share(8)) / 2, 1);
  e.parallel.tensor = 4;
  EXPECT_NEAR(found(), static_cast<double>(share(64)), 1);
  e.attention.sparse.heads.clear();
  EXPECT_TRUE(estimate_of_budgets(e, kLengths).empty());
}

struct Planned {
  explicit Planned(const config::Experiment& e, const SparseEstimate& estimate)
      : experiment(e),
        step_shape(e),
        plans(plan_ticks(e, data::Packer(test::Lengths(3), e).batch(0), {}, estimate)),
        index(step_shape, plans) {}
  config::Experiment experiment;
  StepShape step_shape;
  std::vector<TickPlans> plans;
  PlanIndex index;
};

TEST(LayerClasses, OperationsFollowThePlansOfTheirLayer) {
  config::Experiment e = sparse_experiment(3);
  e.attention.layers = {kSparse, kFull, kSparse};
  const Planned step(e, estimate_of({0.1, 1, 0.6}));
  ASSERT_EQ(step.index.classes(), 3);
  ASSERT_EQ(step.plans.size(), 2 * 3U);
  std::set<int> layers;
  for (const Instruction& done : make_program(step.step_shape, 0, step.plans).instructions) {
    if (done.tick < 0) continue;
    const plan::Workload& workload =
        step.plans.at(static_cast<std::size_t>(done.plan)).forward.workload;
    EXPECT_EQ(step.index.tick(done.plan), done.tick);
    if (done.layer < 0) continue;
    EXPECT_THAT(workload.layers, ::testing::Contains(done.layer));
    EXPECT_EQ(workload.sparse.block == 0, done.layer == 1);
    if (done.operation == Operation::estimate) layers.insert(done.layer);
  }
  EXPECT_THAT(layers, ElementsAre(0, 2));
}

TEST(LayerClasses, HaveTheSameHomesAndValidPlansOfTheirOwn) {
  config::Experiment e = sparse_experiment(3);
  e.attention.layers = {kSparse, kFull, kSparse};
  const Planned step(e, estimate_of({0.1, 1, 0.6}));
  for (std::size_t i = 0; i < step.plans.size(); ++i) {
    const plan::Plan& plan = step.plans[i].forward;
    EXPECT_THAT(plan::violations(plan), IsEmpty());
    EXPECT_EQ(plan.workload.homes, step.plans[i - i % 3].forward.workload.homes);
    EXPECT_LT(plan::imbalance(plan), 1.1);  // each weighed for its own layers
  }
  EXPECT_NE(plan::hash(step.plans[1].forward), plan::hash(step.plans[2].forward));
}

/// Pairs of a head by rank.
std::vector<std::int64_t> pairs_by_rank(const plan::Plan& plan, int ranks, std::int64_t heads) {
  std::vector<std::int64_t> pairs(static_cast<std::size_t>(ranks), 0);
  for (const plan::Stage& stage : plan.stages) {
    for (const plan::PlacedTask& placed : stage.tasks) {
      pairs[at(placed.server)] += allowed_pairs(placed.task) * placed.task.heads.size();
    }
  }
  for (std::int64_t& each : pairs) each /= heads;
  return pairs;
}

/// Documents of 4 and 8 tokens have 46 pairs, and 30 in a window of 3.
TEST(LayerClasses, EachMaskIsBalancedByItself) {
  config::Experiment e;
  e.model = tiny_model(6);
  e.parallel.context = 2;
  e.batch.tokens = e.batch.microbatch = 12;
  e.attention.kind = config::AttentionKind::window;
  e.attention.window = 3;
  e.attention.layers = {e.attention.kind, e.attention.kind, kFull};
  e.attention.overlap = config::Overlap::none;
  e.attention.block = 1;
  e.attention.tolerance = 0;
  data::Batch batch;
  batch.microbatches.push_back({{{0, {0, 4}}, {1, {0, 8}}}});
  const std::vector<TickPlans> plans = plan_ticks(e, batch, {}, {});
  ASSERT_EQ(plans.size(), 2U);
  EXPECT_THAT(plans[0].forward.workload.layers, ElementsAre(2, 5));
  EXPECT_THAT(plans[1].forward.workload.layers, ElementsAre(0, 1, 3, 4));
  EXPECT_THAT(pairs_by_rank(plans[0].forward, 2, e.model.heads), ElementsAre(23, 23));
  EXPECT_THAT(pairs_by_rank(plans[1].forward, 2, e.model.heads), ElementsAre(15, 15));
  EXPECT_EQ(plans[0].forward.workload.homes, plans[1].forward.workload.homes);
}

/// Keys that a query of a document sees, counted one by one.
std::int64_t seen_by(const config::Attention& a, bool full, std::int64_t length, std::int64_t i) {
  std::int64_t count = 0;
  for (std::int64_t j = 0; j < length; ++j) {
    const bool causal = j <= i;
    if (full) {
      count += causal;
    } else if (a.kind == config::AttentionKind::window) {
      count += causal && (i - j < a.window || j < a.sinks);
    } else {
      count += causal || (i < a.prefix && j < a.prefix);
    }
  }
  return count;
}

/// Pairs of all heads that a plan's tasks have to cover.
std::int64_t pairs_to_cover(const config::Attention& a, bool full, const plan::Workload& workload) {
  std::int64_t pairs = 0;
  for (std::size_t d = 0; d < workload.lengths.size(); ++d) {
    const std::int64_t length = workload.lengths[d];
    const Range queries = workload.queries.empty() ? Range{0, length} : workload.queries[d];
    for (std::int64_t i = queries.begin; i < queries.end; ++i) pairs += seen_by(a, full, length, i);
  }
  return pairs * workload.shape.heads;
}

/// Any layout with layers of two kinds, where servers have no layers of several stages.
config::Experiment random_layers(std::uint64_t seed) {
  plan::test::Draw draw(seed);
  config::Experiment e = test::random_experiment(draw);
  config::Attention& a = e.attention;
  a.kind = draw.of(std::vector{config::AttentionKind::window, config::AttentionKind::prefix});
  a.window = draw.of(std::vector<std::int64_t>{1, 7, 60});
  a.sinks = draw.of(std::vector<std::int64_t>{0, 3});
  a.prefix = draw.of(std::vector<std::int64_t>{5, 80});
  a.layers = draw.of(std::vector<std::vector<config::AttentionKind>>{
      {a.kind, kFull}, {kFull, a.kind}, {a.kind, a.kind, kFull}});
  if (a.kind == config::AttentionKind::prefix) a.overlap = config::Overlap::none;
  if (a.servers == 0) e.parallel.schedule = config::PipelineSchedule::one_f_one_b;
  if (a.servers > 0) e.parallel.pipeline = 1;
  return e;
}

TEST(LayerClasses, PlansOfAnyLayoutCoverTheMaskOfTheirLayers) {
  int of_two_kinds = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const config::Experiment e = random_layers(seed);
    const std::vector<TickPlans> plans =
        plan_ticks(e, data::Packer(test::Lengths(seed), e).batch(0), {});
    std::set<bool> kinds;
    for (const TickPlans& tick : plans) {
      const plan::Workload& workload = tick.forward.workload;
      EXPECT_THAT(plan::violations(tick.forward), IsEmpty());
      const int layer = workload.layers.empty() ? 0 : workload.layers.front();
      for (const int other : workload.layers) {
        EXPECT_EQ(e.attention.is_full(other), e.attention.is_full(layer));
      }
      const bool full = e.attention.is_full(layer);
      kinds.insert(full);
      const auto ranks = static_cast<int>(tick.forward.cost_per_rank.size());
      const auto covered = pairs_by_rank(tick.forward, ranks, 1);
      EXPECT_EQ(std::accumulate(covered.begin(), covered.end(), std::int64_t{0}),
                pairs_to_cover(e.attention, full, workload));
    }
    of_two_kinds += kinds.size() == 2;
  }
  EXPECT_GT(of_two_kinds, 100);
}

TEST(LayerClasses, PipelineStagesCountTheLayersOfTheModel) {
  config::Experiment e = sparse_experiment(8);
  e.parallel.data = 1;
  e.parallel.pipeline = 2;
  e.parallel.chunks = 2;
  e.attention.placement = config::PlacementKind::colocated;
  e.attention.layers = {kSparse, kSparse, kFull,   kFull,
                        kSparse, kSparse, kSparse, kSparse};  // the second stage's first chunk
  const Planned step(e, {});
  ASSERT_EQ(step.index.classes(), 2);
  for (const Rank rank : {0, 1}) {
    std::set<int> dense;
    for (const Instruction& done : make_program(step.step_shape, rank, step.plans).instructions) {
      if (done.layer < 0 || done.plan < 0) continue;
      if (step.index.layer_class(done.plan) == 0) dense.insert(done.layer);
    }
    EXPECT_EQ(dense, rank == 0 ? std::set<int>{} : (std::set{0, 1}));
  }
}

TEST(LayerClasses, AreDescribedByWhatTheyWerePlannedBy) {
  config::Experiment e = sparse_experiment(2);
  e.attention.sparse.dense_steps = 3;
  EXPECT_EQ(describe_estimate(e, 2, {}), "");
  EXPECT_EQ(describe_estimate(e, 3, {}), "budgets");
  EXPECT_EQ(describe_estimate(e, 9, estimate_of({0.1, 0.1})), "steps up to 7");
}

}  // namespace
}  // namespace cadenza::program::test_layer_classes
