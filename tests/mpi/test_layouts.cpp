// SPDX-License-Identifier: Apache-2.0
// Random layouts, placements and documents train like one rank; what they send is what their plans
// say, what they allocate is what was estimated.
#include <gmock/gmock.h>

#include <cmath>

#include "../../src/config/words.hpp"
#include "cadenza/exec/memory/binding.hpp"
#include "cadenza/model/checkpoint.hpp"
#include "cadenza/storage/hdf5.hpp"
#include "shared_device.hpp"
#include "unit/exec/random_experiment.hpp"
#include "unit/sanitized.hpp"
#include "unit/storage/child.hpp"

namespace cadenza::exec::test_layouts {
namespace {

using cadenza::testing::kSanitized;
using program::Pass;
using testing::Draw;
using testing::RankState;

struct Case {
  std::string description;
  config::Experiment experiment;
};

/// `rounds` experiments of every placement on `ranks` ranks.
std::vector<Case> random_cases(int ranks, int rounds, std::uint64_t seed) {
  std::vector<Case> cases;
  for (int round = 0; round < rounds; ++round) {
    for (const config::PlacementKind placement : testing::all_placements()) {
      // Where a prime number of ranks is too many heads for the placement, the layout is another.
      Draw draw(seed + 1000 * static_cast<std::uint64_t>(ranks) + cases.size());
      Case made;
      made.experiment = testing::random_experiment(draw, ranks, placement);
      made.description = config::to_yaml(made.experiment);
      cases.push_back(std::move(made));
    }
  }
  return cases;
}

template <typename Real>
std::vector<StepResult> train(const config::Experiment& drawn, comm::Communicator& world, int steps,
                              const std::string& checkpoint) {
  const config::Experiment experiment = testing::on_these_devices(drawn, world);
  RankState<Real> runner(experiment, world);
  std::vector<StepResult> results;
  for (int step = 0; step < steps; ++step) results.push_back(runner.run(step));
  runner.executor.write_checkpoint(checkpoint, steps);
  return results;
}

/// Largest difference between two checkpoints, over parameters and moments.
double checkpoint_difference(const config::Model& model, const std::string& a,
                             const std::string& b) {
  const storage::File first = storage::File::open(a);
  const storage::File second = storage::File::open(b);
  double largest = 0;
  for (const auto& info : model::make_parameter_table(model, model::whole_model(model)).entries) {
    storage::Shape shape{static_cast<hsize_t>(info.rows)};
    if (info.is_matrix()) shape.push_back(static_cast<hsize_t>(info.columns));
    for (const char* prefix : {"", model::kFirstMomentPrefix, model::kSecondMomentPrefix}) {
      const auto x = first.read<double>(prefix + info.name, shape);
      const auto y = second.read<double>(prefix + info.name, shape);
      for (std::size_t i = 0; i < x.size(); ++i) {
        largest = std::max(largest, std::abs(x[i] - y[i]));
      }
    }
  }
  return largest;
}

void expect_same(const std::vector<StepResult>& found, const std::vector<StepResult>& expected,
                 double loss_tolerance, double norm_tolerance) {
  for (std::size_t step = 0; step < expected.size(); ++step) {
    EXPECT_NEAR(found[step].loss, expected[step].loss, loss_tolerance * expected[step].loss)
        << "step " << step;
    EXPECT_NEAR(found[step].gradient_norm, expected[step].gradient_norm,
                norm_tolerance * expected[step].gradient_norm)
        << "step " << step;
  }
}

TEST(Layouts, TrainLikeOneRankInDouble) {
  const auto world = comm::make_world();
  for (const Case& one : random_cases(world->size(), kSanitized ? 1 : 2, 1)) {
    SCOPED_TRACE(one.description);
    const test::TemporaryFolder folder;  // rank 0's counts
    const std::string mine = folder / "layout.h5", reference = folder / "reference.h5";
    const auto found = train<double>(one.experiment, *world, 3, mine);
    if (world->rank() != 0) continue;
    const auto self = comm::make_self();
    const auto expected = train<double>(testing::on_one_rank(one.experiment), *self, 3, reference);
    expect_same(found, expected, 1e-11, 1e-9);
    EXPECT_LT(checkpoint_difference(one.experiment.model, mine, reference), 1e-10);
  }
}

/// One layer more than there are chunks of stages: dealt, interleaved and as a list.
std::vector<config::Experiment> uneven_pipelines(int stages) {
  config::Experiment e = testing::tiny_experiment();
  e.model.layers = 2 * stages + 1;
  e.attention.placement = config::PlacementKind::colocated;
  e.parallel.pipeline = stages;
  e.batch.microbatch = 64;
  e.batch.tokens = 2 * stages * e.batch.microbatch;
  std::vector<config::Experiment> all(3, e);
  all[1].parallel.chunks = 2;
  all[1].run.recompute = config::Recompute::layer;
  all[2].parallel.stages.assign(static_cast<std::size_t>(stages), 1);
  all[2].parallel.stages.front() = stages + 2;
  return all;
}

TEST(Layouts, UnevenStagesGoOnFromOneRankAndBack) {
  const auto world = comm::make_world();
  if (world->size() == 1) GTEST_SKIP() << "one rank has one stage";
  const test::TemporaryFolder folder;
  std::string written = folder / "pipeline.h5", passed = folder / "one_rank.h5";
  for (std::string* path : {&written, &passed}) {  // rank 0's count
    world->broadcast(std::as_writable_bytes(std::span(*path)), 0);
  }
  const auto self = comm::make_self();
  for (const config::Experiment& drawn : uneven_pipelines(world->size())) {
    SCOPED_TRACE(config::to_yaml(drawn));
    const config::Experiment e = testing::on_these_devices(drawn, *world);
    const config::Experiment alone = testing::on_one_rank(e);
    std::vector<StepResult> found, expected;
    RankState<double> first(e, *world);
    found.push_back(first.run(0));
    first.executor.write_checkpoint(written, 1);
    if (world->rank() == 0) {
      RankState<double> reference(alone, *self);
      for (int step = 0; step < 3; ++step) expected.push_back(reference.run(step));
      RankState<double> second(alone, *self);
      second.executor.read_checkpoint(model::CheckpointReader(written));
      found.push_back(second.run(1));
      second.executor.write_checkpoint(passed, 2);
    }
    world->barrier();
    RankState<double> third(e, *world);
    third.executor.read_checkpoint(model::CheckpointReader(passed));
    found.push_back(third.run(2));
    if (world->rank() == 0) expect_same(found, expected, 1e-12, 1e-12);
    world->barrier();
  }
}

/// What tokens see, which no placement knows.
void set_random_kind(Draw& draw, config::AttentionKind kind, config::Experiment& e) {
  config::Attention& attention = e.attention;
  attention.kind = kind;
  attention.window = draw.of(std::vector<std::int64_t>{1, 7, 40, 150});
  attention.sinks = draw.of(std::vector<std::int64_t>{0, 3});
  attention.prefix = draw.of(std::vector<std::int64_t>{2, 50});
  attention.chunk = draw.of(std::vector<std::int64_t>{8, 30, 64});
  attention.local = draw.of(std::vector<std::int64_t>{0, 5});
  config::SparseAttention& sparse = attention.sparse;
  sparse.stride = draw.of(std::vector<std::int64_t>{1, 4});
  sparse.threshold = draw.of(std::vector<double>{0.5, 0.9});
  sparse.block = sparse.stride * draw.of(std::vector<std::int64_t>{2, 7});
  sparse.columns = draw.of(std::vector<std::int64_t>{4, 90});
  sparse.slashes = draw.of(std::vector<std::int64_t>{2, 20});
  sparse.top_p = draw.of(std::vector<double>{0, 0.5});
  sparse.sinks = draw.of(std::vector<std::int64_t>{0, 2});
  sparse.window = draw.of(std::vector<std::int64_t>{0, 2});
  sparse.dense_below = draw.of(std::vector<std::int64_t>{0, 50});
  using config::AttentionKind;
  // Servers of several stages compute the same layer of all of them, which would have to be alike.
  const bool pooled =
      e.parallel.pipeline > 1 && e.pipeline_schedule() == config::PipelineSchedule::phase_aligned;
  const bool mixes = kind != AttentionKind::full && kind != AttentionKind::dual_chunk && !pooled;
  if (mixes && draw.between(0, 1) == 0) attention.layers = {kind, AttentionKind::full};
  const bool halves = attention.mask().is_causal() && attention.sparse_rule().block == 0;
  if (!halves) attention.overlap = config::Overlap::none;
}

TEST(Layouts, TrainLikeOneRankWithEveryKind) {
  constexpr int kSteps = kSanitized ? 2 : 4;
  constexpr int kKinds = std::size(config::kWords<config::AttentionKind>);
  const auto world = comm::make_world();
  Draw draw(5);
  std::vector<Case> cases = random_cases(world->size(), 1, 5);
  ASSERT_GE(cases.size(), kKinds);
  int number = world->size();  // placements meet other kinds on other numbers of ranks
  for (Case& one : cases) {
    const auto kind = config::AttentionKind(number++ % kKinds);
    SCOPED_TRACE(fmt::format("{} of {}", config::word_of(kind), one.description));
    set_random_kind(draw, kind, one.experiment);
    const test::TemporaryFolder folder;
    const auto found = train<double>(one.experiment, *world, kSteps, folder / "unused.h5");
    if (world->rank() != 0) continue;
    const auto self = comm::make_self();
    const auto expected =
        train<double>(testing::on_one_rank(one.experiment), *self, kSteps, folder / "unused.h5");
    expect_same(found, expected, 1e-11, 1e-9);
  }
}

TEST(Layouts, TrainLikeOneRankForTenStepsInFloat) {
  if (kSanitized) GTEST_SKIP() << "the lines are those of double";
  constexpr int kSteps = 10;
  const auto world = comm::make_world();
  for (const Case& one : random_cases(world->size(), 1, 2)) {
    SCOPED_TRACE(one.description);
    const test::TemporaryFolder folder;
    const auto found = train<float>(one.experiment, *world, kSteps, folder / "unused.h5");
    if (world->rank() != 0) continue;
    const auto self = comm::make_self();
    const auto expected =
        train<float>(testing::on_one_rank(one.experiment), *self, kSteps, folder / "unused.h5");
    expect_same(found, expected, 1e-5, 1e-3);
  }
}

/// Bytes of attention that a rank sends in a step, by its plans: of every layer and pass.
std::int64_t attention_bytes(const config::Experiment& e, const program::StepPlan& step,
                             Rank rank) {
  const program::StepShape step_shape(e);
  const auto in_pool = static_cast<std::size_t>(step_shape.layout.in_pool(rank));
  const bool again = e.run.recompute == config::Recompute::attention ||
                     e.run.recompute == config::Recompute::layer;
  const std::vector<program::Tick> ticks = step_shape.ticks();
  const bool phases = step_shape.layout.pools_stages() && step_shape.layout.pipeline() > 1;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < step.tick_plans.size(); ++i) {
    const std::int64_t forward = step.tick_plans[i].forward.bytes_sent_per_rank[in_pool];
    const std::int64_t backward = step.tick_plans[i].backward.bytes_sent_per_rank[in_pool];
    const Pass phase = ticks[i / static_cast<std::size_t>(step_shape.halves)].phase;
    if (!phases || phase == Pass::forward) bytes += forward;
    if (!phases || phase == Pass::backward) bytes += backward + (again ? forward : 0);
  }
  return bytes * step_shape.layers_of_rank(rank);
}

/// Bytes of residual streams and their gradients that it sends to its neighbours in the pipeline.
std::int64_t stream_bytes(const config::Experiment& e, const program::StepPlan& step, Rank rank) {
  const program::StepShape step_shape(e);
  const program::Layout& layout = step_shape.layout;
  std::int64_t rows = 0;
  for (const program::Instruction& operation : step.program.instructions) {
    if (operation.operation != program::Operation::send) continue;
    const auto& tick = step.tick_plans[static_cast<std::size_t>(operation.plan)];
    rows += home_rows(tick, layout.in_pool(rank), layout.tensor()).rows();
  }
  return rows / layout.tensor() * e.model.d_model * config::element_bytes(e.run.dtype).accumulator;
}

template <typename Real>
void expect_bytes_and_memory(const config::Experiment& drawn, comm::Communicator& world) {
  const config::Experiment e = testing::on_these_devices(testing::with_dtype<Real>(drawn), world);
  RankState<Real> runner(e, world);
  const program::StepPlan step = runner.plan(0);
  runner.tracer.begin_step(0);
  runner.executor.run(step);
  const StepTotals& totals = runner.tracer.totals();
  EXPECT_EQ(totals.bytes_sent,
            attention_bytes(e, step, world.rank()) + stream_bytes(e, step, world.rank()));
  std::int64_t difference = totals.bytes_sent - totals.bytes_received;
  world.all_reduce(std::span(&difference, 1), comm::Reduction::sum);
  EXPECT_EQ(difference, 0);
  testing::expect_memory(estimate_memory(e, program::StepShape(e), step.program, step.tick_plans),
                         runner.ledger);
  EXPECT_EQ(runner.recorder.dropped(), 0u);
}

TEST(Layouts, BytesAndMemoryAreWhatPlansSay) {
  const auto world = comm::make_world();
  for (const Case& one : random_cases(world->size(), 3, 3)) {
    SCOPED_TRACE(one.description);
    expect_bytes_and_memory<float>(one.experiment, *world);
  }
  for (Case& one : random_cases(world->size(), 1, 6)) {
    SCOPED_TRACE(one.description);
    one.experiment.attention.kind = config::AttentionKind::window;
    one.experiment.attention.window = 30;
    expect_bytes_and_memory<float>(one.experiment, *world);
  }
}

TEST(Layouts, BytesAndMemoryAreWhatPlansSayInBfloat16) {
  if (!kernels::supports_bfloat16()) GTEST_SKIP() << "no bfloat16 on this machine";
  const auto world = comm::make_world();
  for (const Case& one : random_cases(world->size(), 1, 4)) {
    if (one.experiment.parallel.tensor > 1 || one.experiment.parallel.context > 1) continue;
    SCOPED_TRACE(one.description);
    expect_bytes_and_memory<bfloat16>(one.experiment, *world);
  }
}

}  // namespace
}  // namespace cadenza::exec::test_layouts
