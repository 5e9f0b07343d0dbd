// SPDX-License-Identifier: Apache-2.0
// Data ranks and attention servers train like a single rank: the losses of some steps and the final
// parameters, in every type. Random layouts of all kinds: test_layouts.cpp.
#include <gmock/gmock.h>

#include <array>
#include <cmath>

#include "cadenza/base/error.hpp"
#include "unit/exec/random_experiment.hpp"
#include "unit/kernels/device_data.hpp"
#include "unit/sanitized.hpp"

namespace cadenza::exec::test_training {
namespace {

using testing::RankState;
using testing::tiny_experiment;

struct Layout {
  config::PlacementKind placement;
  int servers = 0;  ///< dedicated; the other ranks of the world train
};

std::string describe(const Layout& layout) {
  return fmt::format("{} with {} dedicated servers",
                     layout.placement == config::PlacementKind::cad ? "cad" : "colocated",
                     layout.servers);
}

/// Layouts of data ranks and servers that use exactly `ranks` ranks.
std::vector<Layout> layouts(int ranks) {
  std::vector<Layout> all;
  for (const auto placement : {config::PlacementKind::colocated, config::PlacementKind::cad}) {
    for (int servers = 0; servers <= 2 && servers < ranks; ++servers) {
      if (12 % (ranks - servers) == 0) all.push_back({placement, servers});
    }
  }
  return all;
}

config::Experiment with_layout(const Layout& layout, int ranks) {
  config::Experiment e = tiny_experiment();
  e.attention.placement = layout.placement;
  e.attention.servers = layout.servers;
  e.parallel.data = ranks - layout.servers;
  return e;
}

template <typename Real>
struct Curve {
  std::vector<double> losses;
  std::vector<Accumulator<Real>> weights;  ///< empty on dedicated servers
};

template <typename Real>
Curve<Real> train(const config::Experiment& experiment, comm::Communicator& world, int steps) {
  RankState<Real> runner(experiment, world);
  Curve<Real> curve;
  for (int step = 0; step < steps; ++step) curve.losses.push_back(runner.run(step).loss);
  if (const auto* p = runner.executor.parameters()) {
    for (const Real weight : cadenza::testing::download(p->weights)) {
      curve.weights.push_back(static_cast<Accumulator<Real>>(weight));
    }
  }
  return curve;
}

template <typename Real>
void expect_every_layout_trains_like_one_rank(int steps, double loss_tolerance,
                                              double weight_tolerance) {
  const auto self = comm::make_self();
  const Curve<Real> reference =
      train<Real>(with_layout({config::PlacementKind::colocated, 0}, 1), *self, steps);
  const auto world = comm::make_world();
  for (const Layout& layout : layouts(world->size())) {
    SCOPED_TRACE(describe(layout));
    const Curve<Real> curve = train<Real>(with_layout(layout, world->size()), *world, steps);
    for (std::size_t step = 0; step < curve.losses.size(); ++step) {
      EXPECT_NEAR(curve.losses[step], reference.losses[step],
                  loss_tolerance * reference.losses[step])
          << "step " << step;
    }
    for (std::size_t i = 0; i < curve.weights.size(); ++i) {
      ASSERT_NEAR(curve.weights[i], reference.weights[i], weight_tolerance) << i;
    }
  }
}

constexpr int kSteps = cadenza::testing::kSanitized ? 3 : 10;

TEST(Training, EveryLayoutTrainsLikeOneRankInFloat) {
  // AdamW divides by the root of the second moment: elements whose gradient is rounding noise may
  // differ.
  expect_every_layout_trains_like_one_rank<float>(kSteps, 1e-5, 5e-3);
}

TEST(Training, EveryLayoutTrainsLikeOneRankInDouble) {
  if (cadenza::testing::kSanitized) GTEST_SKIP() << "the lines are those of float";
  expect_every_layout_trains_like_one_rank<double>(3, 1e-12, 1e-9);
}

TEST(Training, EveryLayoutTrainsLikeOneRankInBfloat16) {
  if (!kernels::supports_bfloat16()) GTEST_SKIP() << "no bfloat16 on this machine";
  // Other orders of sums let some of them round to the next bfloat16, by 2^-8 at most: that changes
  // by this part what updates do to the loss, which falls by less than 1 of 4. AdamW moves an
  // element by about the learning rate a step, whatever its gradient: by twice that, at most, two
  // elements drift apart.
  expect_every_layout_trains_like_one_rank<bfloat16>(kSteps, 0x1p-8 / 4, 2 * kSteps * 3e-3);
}

template <typename Real>
void expect_shards_train_like_whole_state(double loss_tolerance, double weight_tolerance) {
  const auto world = comm::make_world();
  config::Experiment e = with_layout({config::PlacementKind::colocated, 0}, world->size());
  if (12 % world->size() != 0) GTEST_SKIP() << "no batch for " << world->size() << " ranks";
  const Curve<Real> whole = train<Real>(e, *world, 3);
  e.parallel.shard = config::Shard::optimizer;
  const Curve<Real> shards = train<Real>(e, *world, 3);
  for (std::size_t step = 0; step < whole.losses.size(); ++step) {
    EXPECT_NEAR(shards.losses[step], whole.losses[step], loss_tolerance * whole.losses[step]);
  }
  for (std::size_t i = 0; i < whole.weights.size(); ++i) {
    ASSERT_NEAR(shards.weights[i], whole.weights[i], weight_tolerance) << i;
  }
}

// Two ranks add in one order, more in that of the collective: a sum of gradients then rounds to
// its neighbour, which moves a rounded weight by one unit in its last of 8 bits at most.
TEST(Training, ShardsOfTheOptimizerTrainLikeWholeState) {
  expect_shards_train_like_whole_state<double>(1e-12, 1e-9);
  if (!kernels::supports_bfloat16()) return;
  const bool two = comm::make_world()->size() == 2;
  expect_shards_train_like_whole_state<bfloat16>(two ? 1e-6 : 1e-3, two ? 1e-6 : 6 * 3e-3);
}

/// A step that is odd: trains like one rank all the same, and leaves finite numbers.
void expect_same_as_one_rank(const config::Experiment& e, comm::Communicator& world) {
  const auto self = comm::make_self();
  const Curve<double> expected = train<double>(testing::on_one_rank(e), *self, 2);
  const Curve<double> found = train<double>(e, world, 2);
  for (std::size_t step = 0; step < expected.losses.size(); ++step) {
    ASSERT_TRUE(std::isfinite(found.losses[step]));
    EXPECT_NEAR(found.losses[step], expected.losses[step], 1e-11 * expected.losses[step]);
  }
}

std::int64_t sum_of(const SparseCounts& counts,
                    std::array<std::int64_t, SparseDensity::kBins> SparseCounts::Rows::*which) {
  std::int64_t sum = 0;
  for (const auto& [place, rows] : counts.rows) {
    for (const std::int64_t pairs : rows.*which) sum += pairs;
  }
  return sum;
}

/// Tensor ranks wait for the one whose heads keep most of a row: plans weigh rows by it.
TEST(Training, CountsAreThoseOfTheFullestTensorRank) {
  const auto world = comm::make_world();
  const int ranks = world->size();
  if (4 % ranks != 0) return;
  config::Experiment e = tiny_experiment();
  e.model.kv_heads = 4;
  e.attention.kind = config::AttentionKind::vertical_slash;
  e.attention.overlap = config::Overlap::none;
  e.attention.sparse.block = 8;
  e.attention.sparse.columns = 2;
  e.attention.sparse.slashes = 1;
  e.attention.sparse.sinks = e.attention.sparse.window = 0;
  e.attention.sparse.dense_below = 40;
  const std::vector<config::HeadBudget> first = {{256, 1, 0}};  // keeps every column
  e.attention.sparse.heads = {first, first};
  const auto self = comm::make_self();
  const SparseCounts expected = RankState<float>(e, *self).run(0).sparse;
  e.parallel.tensor = ranks;
  const SparseCounts found = RankState<float>(e, *world).run(0).sparse;
  EXPECT_EQ(found.kept, expected.kept);
  EXPECT_EQ(found.causal, expected.causal);
  EXPECT_EQ(sum_of(found, &SparseCounts::Rows::causal), expected.causal / ranks);
  // The first rank has the first head, beside 4 / ranks - 1 sparse ones; the others have sparse
  // ones.
  const std::int64_t head = expected.causal / 4;
  const std::int64_t sparse = (expected.kept - head) / 3;
  const auto fullest = static_cast<double>(head + (4 / ranks - 1) * sparse);
  EXPECT_NEAR(static_cast<double>(sum_of(found, &SparseCounts::Rows::kept)), fullest,
              0.1 * fullest);
  EXPECT_LT(sparse, head / 2);
}

TEST(Training, MicrobatchesMayBeEmpty) {
  const auto world = comm::make_world();
  for (const auto placement : {config::PlacementKind::colocated, config::PlacementKind::cad}) {
    config::Experiment e = tiny_experiment();
    e.attention.placement = placement;
    e.parallel.data = world->size();
    // One document of the length of two microbatches: at least every other one is empty.
    e.batch.microbatch = 64;
    e.batch.tokens = 2 * 64 * world->size();
    e.batch.packing = config::Packing::pooled;
    e.batch.longest = 4;
    e.data.max_document = 2 * 64;
    e.data.lengths.distribution = config::Distribution::constant;
    e.data.lengths.median = 2 * 64;
    const auto corpus = data::open_corpus(e.data, e.model.vocab, e.seed);
    const data::Batch batch = data::Packer(*corpus, e).batch(0);
    EXPECT_TRUE(std::ranges::any_of(batch.microbatches, [](const data::Microbatch& microbatch) {
      return microbatch.documents.empty();
    }));
    expect_same_as_one_rank(e, *world);
  }
}

TEST(Training, OneDocumentMayBeLongerThanARanksShare) {
  const auto world = comm::make_world();
  for (const auto placement : {config::PlacementKind::ring, config::PlacementKind::block_striped,
                               config::PlacementKind::all_gather, config::PlacementKind::cad}) {
    config::Experiment e = tiny_experiment();
    e.attention.placement = placement;
    e.parallel.context = world->size();
    e.batch.microbatch = 101;
    e.batch.tokens = 2 * 101;
    e.data.max_document = 101;
    e.data.lengths.distribution = config::Distribution::constant;
    e.data.lengths.median = 101;
    expect_same_as_one_rank(e, *world);
  }
}

TEST(Training, ServersMayBeMoreThanBlocks) {
  const auto world = comm::make_world();
  config::Experiment e = tiny_experiment();
  e.attention.block = 128;
  e.parallel.data = 1;
  e.attention.servers = world->size() - 1;
  e.batch.microbatch = 100;
  e.batch.tokens = 200;
  e.data.max_document = 100;
  expect_same_as_one_rank(e, *world);
}

TEST(Training, DocumentsMayHaveOneToken) {
  const auto world = comm::make_world();
  for (const auto placement : {config::PlacementKind::zigzag, config::PlacementKind::striped,
                               config::PlacementKind::cad}) {
    config::Experiment e = tiny_experiment();
    e.attention.placement = placement;
    e.parallel.context = world->size();
    e.batch.microbatch = 30;
    e.batch.tokens = 60;
    e.data.lengths.distribution = config::Distribution::list;
    e.data.lengths.values = {1, 1, 9, 1};
    expect_same_as_one_rank(e, *world);
    e.data.lengths.values = {1};  // no targets at all
    expect_same_as_one_rank(e, *world);
  }
}

TEST(Training, PlansForElementsOfAnotherSizeAreRefused) {
  const auto world = comm::make_world();
  RankState<float> runner(with_layout({config::PlacementKind::cad, 0}, world->size()), *world);
  const program::StepPlan planned = runner.plan(0);
  RankState<double> other(with_layout({config::PlacementKind::cad, 0}, world->size()), *world);
  other.tracer.begin_step(0);
  EXPECT_THROW(other.executor.run(planned), Error);
}

TEST(Training, RanksWithDifferentPlansStopOnAllRanks) {
  const auto world = comm::make_world();
  if (world->size() == 1) GTEST_SKIP() << "one rank cannot disagree";
  RankState<float> runner(with_layout({config::PlacementKind::cad, 0}, world->size()), *world);
  program::StepPlan plan = runner.plan(0);
  if (world->rank() == world->size() - 1) plan.hash ^= 1;
  try {
    runner.executor.run(plan);
    FAIL() << "not noticed on rank " << world->rank();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::communication);
  }
}

}  // namespace
}  // namespace cadenza::exec::test_training
