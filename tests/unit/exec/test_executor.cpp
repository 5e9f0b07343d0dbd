// SPDX-License-Identifier: Apache-2.0
// The executor on one rank: gradients of the whole training step against central differences in
// double, events against the program, totals against the plan.
#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "cadenza/base/error.hpp"
#include "cadenza/base/random.hpp"
#include "cadenza/cost/flops.hpp"
#include "unit/exec/tiny.hpp"
#include "unit/kernels/device_data.hpp"
#include "unit/sanitized.hpp"

namespace cadenza::exec {
namespace {

using testing::RankState;
using testing::tiny_experiment;

/// A model small enough for differences, with a learning rate of zero: parameters stay where they
/// are put.
config::Experiment still_experiment(bool tied) {
  config::Experiment e = tiny_experiment();
  e.model.tie_embeddings = tied;
  e.batch.tokens = 192;
  e.batch.microbatch = 96;
  e.data.lengths.median = 20;
  e.optimizer.lr = 0;
  return e;
}

void expect_gradients_match_differences(const config::Experiment& experiment) {
  const auto world = comm::make_self();
  RankState<double> runner(experiment, *world);
  runner.run(0);
  const auto& parameters = *runner.executor.parameters();
  const std::vector<double> gradients = cadenza::testing::download(parameters.gradients);
  const auto values = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace{}, parameters.weights);
  constexpr double kStep = 1e-5;
  for (const model::ParameterInfo& info : parameters.table.entries) {
    for (std::uint64_t sample = 0; sample < 3; ++sample) {
      const auto index = static_cast<std::int64_t>(
          random_bits(11, static_cast<std::uint64_t>(info.offset), sample) %
          static_cast<std::uint64_t>(info.count()));
      const auto at = static_cast<std::size_t>(info.offset + index);
      const double kept = values(at);
      const auto loss_at = [&](double value) {
        values(at) = value;
        Kokkos::deep_copy(parameters.weights, values);
        return runner.run(0).loss;
      };
      const double above = loss_at(kept + kStep);
      const double below = loss_at(kept - kStep);
      values(at) = kept;
      const double difference = (above - below) / (2 * kStep);
      const double gradient = gradients[at];
      EXPECT_NEAR(gradient, difference, 1e-8 + 1e-5 * std::abs(difference))
          << info.name << "[" << index << "]";
    }
  }
}

TEST(Executor, GradientsOfTheWholeModelMatchCentralDifferences) {
  expect_gradients_match_differences(still_experiment(false));
}

TEST(Executor, GradientsMatchWithTiedEmbeddings) {
  expect_gradients_match_differences(still_experiment(true));
}

TEST(Executor, GradientsMatchWithASlidingWindow) {
  config::Experiment e = still_experiment(false);
  e.attention.kind = config::AttentionKind::window;
  e.attention.window = 5;
  expect_gradients_match_differences(e);
}

TEST(Executor, GradientsMatchWithEveryOtherMask) {
  config::Experiment e = still_experiment(false);
  e.attention.kind = config::AttentionKind::window;
  e.attention.window = 5;
  e.attention.sinks = 3;
  expect_gradients_match_differences(e);
  if (cadenza::testing::kSanitized)
    return;  // the kinds differ in plans, which other tests walk through
  e.attention.kind = config::AttentionKind::prefix;
  e.attention.prefix = 6;
  expect_gradients_match_differences(e);
  e.attention.layers = {config::AttentionKind::full, config::AttentionKind::prefix};
  expect_gradients_match_differences(e);
  e.attention.layers = {};
  e.attention.kind = config::AttentionKind::dual_chunk;
  e.attention.chunk = 8;
  e.attention.local = 2;
  expect_gradients_match_differences(e);
}

TEST(Executor, DualChunksAsLongAsTheDocumentsAreCausal) {
  const auto world = comm::make_self();
  config::Experiment e = tiny_experiment();
  RankState<double> causal(e, *world);
  e.attention.kind = config::AttentionKind::dual_chunk;
  e.attention.local = e.batch.microbatch / 2;
  e.attention.chunk = e.batch.microbatch;  // two chunks, but no position is cut
  RankState<double> chunks(e, *world);
  EXPECT_NEAR(chunks.run(0).loss, causal.run(0).loss, 1e-13);
  EXPECT_NEAR(chunks.run(1).loss, causal.run(1).loss, 1e-13);
  e.attention.chunk = 20;
  e.attention.local = 5;
  RankState<double> shorter(e, *world);
  EXPECT_GT(std::abs(shorter.run(0).loss - causal.run(0).loss), 1e-9);
}

TEST(Executor, AWindowAsLongAsTheDocumentsIsCausal) {
  const auto world = comm::make_self();
  config::Experiment e = tiny_experiment();
  RankState<double> causal(e, *world);
  e.attention.kind = config::AttentionKind::window;
  e.attention.window = e.batch.microbatch;
  RankState<double> window(e, *world);
  EXPECT_EQ(window.run(0).loss, causal.run(0).loss);
  EXPECT_EQ(window.run(1).loss, causal.run(1).loss);
}

TEST(Executor, LossFallsOverTenSteps) {
  const auto world = comm::make_self();
  RankState<float> runner(tiny_experiment(), *world);
  const double first = runner.run(0).loss;
  double last = first;
  for (int step = 1; step < 10; ++step) last = runner.run(step).loss;
  EXPECT_NEAR(first, std::log(61.0), 0.1);
  EXPECT_LT(last, first - 0.05);
}

TEST(Executor, Bfloat16FollowsFloat) {
  if (!kernels::supports_bfloat16()) GTEST_SKIP() << "no bfloat16 on this machine";
  const auto world = comm::make_self();
  RankState<bfloat16> runner(tiny_experiment(), *world);
  config::Experiment same = runner.experiment;
  RankState<float> wide(same, *world);
  for (int step = 0; step < 5; ++step) {
    const StepResult found = runner.run(step);
    const StepResult expected = wide.run(step);
    // Means over many elements, each rounded a few times by 2^-8 at most, up or down.
    EXPECT_NEAR(found.loss, expected.loss, 0x1p-8 * expected.loss) << step;
    EXPECT_NEAR(found.gradient_norm, expected.gradient_norm, 0x1p-7 * expected.gradient_norm)
        << step;
  }
}

TEST(Executor, EveryOperationOfTheProgramIsRecordedInOrderAndNothingOverlaps) {
  const auto world = comm::make_self();
  RankState<float> runner(tiny_experiment(), *world);
  const auto plan = runner.plan(0);
  runner.tracer.begin_step(0);
  runner.executor.run(plan);
  std::map<std::string, int> expected;
  for (const program::Instruction& instruction : plan.program.instructions) {
    ++expected[std::string(program::name(instruction.operation))];
  }
  std::map<std::string, int> found;
  std::int64_t last_end = 0;
  for (const trace::Event& event : runner.recorder.events()) {
    if (event.lane != trace::Lane::compute) continue;  // the host's may lie over them
    ++found[runner.recorder.names()[event.name_id]];
    EXPECT_LE(last_end, event.begin_ns);
    EXPECT_LE(event.begin_ns, event.end_ns);
    last_end = event.end_ns;
  }
  expected.erase("reduce_layer");  // starts nothing on one rank
  for (const auto& [name, count] : expected) {
    EXPECT_EQ(found[name], count) << name;
  }
  EXPECT_EQ(runner.recorder.dropped(), 0u);
}

TEST(Executor, ExecutedFlopsOfOneRankEqualTheModelsFormula) {
  const auto world = comm::make_self();
  using config::AttentionKind;
  const std::vector<std::vector<AttentionKind>> of_layers = {
      {AttentionKind::full},
      {AttentionKind::window},
      {AttentionKind::prefix},
      {AttentionKind::dual_chunk},
      {AttentionKind::window, AttentionKind::full}};
  for (const std::vector<AttentionKind>& kinds : of_layers) {
    config::Experiment e = tiny_experiment();
    e.attention.kind = kinds.front();
    e.attention.layers = kinds;
    e.attention.window = 20;
    e.attention.sinks = 3;
    e.attention.prefix = 10;
    e.attention.chunk = 12;
    e.attention.local = 5;
    RankState<float> runner(e, *world);
    const auto plan = runner.plan(0);
    runner.tracer.begin_step(0);
    runner.executor.run(plan);
    EXPECT_NEAR(runner.tracer.totals().flops,
                cost::step_flops(runner.experiment.model, runner.experiment.attention,
                                 plan.batch.lengths()),
                1e-9 * runner.tracer.totals().flops);
    EXPECT_EQ(runner.tracer.totals().bytes_sent, 0);
  }
}

config::Experiment sparse_experiment() {
  config::Experiment e = tiny_experiment();
  e.attention.kind = config::AttentionKind::vertical_slash;
  e.attention.overlap = config::Overlap::none;
  e.attention.sparse.block = 8;
  e.attention.sparse.columns = 10;
  e.attention.sparse.slashes = 4;
  e.attention.sparse.sinks = e.attention.sparse.window = 2;
  e.attention.sparse.dense_below = 40;
  return e;
}

config::Experiment blocks_experiment() {
  config::Experiment e = tiny_experiment();
  e.attention.kind = config::AttentionKind::xattention;
  e.attention.overlap = config::Overlap::none;
  e.attention.sparse.block = 8;
  e.attention.sparse.stride = 4;
  e.attention.sparse.threshold = 0.4;
  e.attention.sparse.dense_below = 40;
  return e;
}

class SparseExecutor : public ::testing::TestWithParam<config::Experiment (*)()> {};
INSTANTIATE_TEST_SUITE_P(Kinds, SparseExecutor,
                         ::testing::Values(sparse_experiment, blocks_experiment));

TEST_P(SparseExecutor, MemoryIsAsEstimated) {
  const auto world = comm::make_self();
  RankState<float> runner(GetParam()(), *world);
  for (int step = 0; step < 3; ++step) {
    const auto plan = runner.plan(step);
    runner.tracer.begin_step(step);
    runner.ledger.reset_peaks();
    const StepResult result = runner.executor.run(plan);
    EXPECT_GT(result.sparse.sparsity(), 0.1);
    ASSERT_TRUE(result.recall.has_value());
    EXPECT_EQ(result.recall->layer, step % runner.experiment.model.layers);
    EXPECT_GT(result.recall->recall.total().share(), 1 - 2 * result.sparse.sparsity());
    EXPECT_LT(result.recall->recall.total().share(), 1);
    if (step > 0) continue;
    testing::expect_memory(estimate_memory(runner.experiment, program::StepShape(runner.experiment),
                                           plan.program, plan.tick_plans),
                           runner.ledger);
  }
}

TEST(Executor, BothKindsRecallTheSameOfTheSamePairs) {
  const auto world = comm::make_self();
  config::Experiment columns = sparse_experiment();  // the first 8 keys, and blocks of the diagonal
  columns.attention.sparse.columns = columns.attention.sparse.sinks = 8;
  columns.attention.sparse.slashes = columns.attention.sparse.window = 1;
  config::Experiment blocks = blocks_experiment();  // likewise
  blocks.attention.sparse.threshold = 1e-9;
  for (config::Experiment* e : {&columns, &blocks}) e->run.dtype = config::Dtype::float64;
  RankState<double> one(columns, *world), other(blocks, *world);
  for (int step = 0; step < 2; ++step) {
    const StepResult a = one.run(step);
    const StepResult b = other.run(step);
    EXPECT_NEAR(a.loss, b.loss, 1e-12);
    EXPECT_EQ(a.sparse.kept, b.sparse.kept);
    ASSERT_TRUE(a.recall && b.recall);
    EXPECT_NEAR(a.recall->recall.total().share(), b.recall->recall.total().share(), 1e-12);
    EXPECT_GT(a.recall->recall.total().share(), 0.01);
    EXPECT_LT(a.recall->recall.total().share(), 0.9);
  }
}

TEST_P(SparseExecutor, WhoKeepsAllRecallsAll) {
  const auto world = comm::make_self();
  config::Experiment e = GetParam()();
  e.attention.sparse.threshold = 1;
  e.attention.sparse.columns = 100000;
  RankState<float> runner(e, *world);
  const StepResult result = runner.run(0);
  EXPECT_EQ(result.sparse.sparsity(), 0);
  ASSERT_TRUE(result.recall.has_value());
  EXPECT_EQ(result.recall->recall.total().share(), 1);
}

/// Layers with plans of their own: a dense one, two that keep more or less.
TEST(Executor, MemoryOfLayerClassesIsAsEstimated) {
  const auto world = comm::make_self();
  config::Experiment e = sparse_experiment();
  e.model.layers = 4;
  const config::AttentionKind sparse = e.attention.kind;
  e.attention.layers = {sparse, config::AttentionKind::full, sparse, sparse};
  e.attention.sparse.heads = {{{2, 1, 0}, {2, 1, 0}, {2, 1, 0}, {2, 1, 0}},
                              {},
                              {{40, 30, 0}, {40, 30, 0}, {40, 30, 0}, {40, 30, 0}}};
  RankState<float> runner(e, *world);
  const auto plan = runner.plan(0);
  EXPECT_GT(program::PlanIndex(program::StepShape(e), plan.tick_plans).classes(), 2);
  runner.tracer.begin_step(0);
  const StepResult result = runner.executor.run(plan);
  testing::expect_memory(
      estimate_memory(runner.experiment, program::StepShape(e), plan.program, plan.tick_plans),
      runner.ledger);
  const auto kept = [&](int layer) {
    std::int64_t pairs = 0;
    for (const auto& [place, rows] : result.sparse.rows) {
      if (place.layer != layer) continue;
      for (const std::int64_t bin : rows.kept) pairs += bin;
    }
    return pairs;
  };
  EXPECT_LT(2 * kept(0), kept(2));
  EXPECT_EQ(kept(1), 0);
  EXPECT_GT(kept(3), 0);  // with the experiment's own budgets
}

TEST(Executor, DenseStepsAndLayersHaveNoIndex) {
  const auto world = comm::make_self();
  config::Experiment e = sparse_experiment();
  e.attention.sparse.dense_steps = 1;
  RankState<float> runner(e, *world);
  EXPECT_EQ(runner.run(0).sparse.sparsity(), 0);
  EXPECT_GT(runner.run(1).sparse.sparsity(), 0);
  config::Experiment half = sparse_experiment();
  half.attention.layers = {config::AttentionKind::full, half.attention.kind};
  const auto causal = [&](const config::Experiment& of) {
    RankState<float> each(of, *world);
    return each.run(0).sparse.causal;
  };
  const auto layers = sparse_experiment().model.layers;
  EXPECT_EQ(causal(half) * layers, causal(sparse_experiment()) * (layers - 1));
}

TEST(Executor, MemoryIsTheSameAfterEveryStep) {
  const auto world = comm::make_self();
  RankState<float> runner(tiny_experiment(), *world);
  runner.run(0);
  const std::int64_t bytes = runner.ledger.total();
  for (int step = 1; step < 4; ++step) runner.run(step);
  EXPECT_EQ(runner.ledger.total(), bytes);
}

template <typename Real>
void expect_memory_as_estimated(config::Recompute recompute, config::Overlap overlap) {
  config::Experiment e = tiny_experiment();
  e.run.recompute = recompute;
  e.attention.overlap = overlap;
  const auto world = comm::make_self();
  RankState<Real> runner(e, *world);
  const auto plan = runner.plan(0);
  runner.tracer.begin_step(0);
  runner.executor.run(plan);
  testing::expect_memory(estimate_memory(runner.experiment, program::StepShape(runner.experiment),
                                         plan.program, plan.tick_plans),
                         runner.ledger);
}

TEST(Executor, MemoryIsWhatWasEstimated) {
  using config::Overlap;
  using config::Recompute;
  for (const Recompute recompute :
       {Recompute::none, Recompute::mlp, Recompute::attention, Recompute::layer}) {
    expect_memory_as_estimated<float>(recompute, Overlap::none);
    expect_memory_as_estimated<double>(recompute, Overlap::none);
    expect_memory_as_estimated<float>(recompute, Overlap::ping_pong);
  }
  if (!kernels::supports_bfloat16()) return;
  expect_memory_as_estimated<bfloat16>(Recompute::none, Overlap::none);
  expect_memory_as_estimated<bfloat16>(Recompute::layer, Overlap::none);
}

TEST(Executor, RecomputationAndHalvesChangeNoResult) {
  const auto world = comm::make_self();
  RankState<double> reference(tiny_experiment(), *world);
  const StepResult expected = reference.run(0);
  for (const int variant : {1, 2, 3, 4, 5, 6, 7}) {
    config::Experiment e = tiny_experiment();
    e.run.recompute = config::Recompute(variant % 4);
    if (variant >= 4) e.attention.overlap = config::Overlap::ping_pong;
    RankState<double> runner(e, *world);
    const StepResult found = runner.run(0);
    EXPECT_NEAR(found.loss, expected.loss, 1e-13 * expected.loss) << variant;
    EXPECT_NEAR(found.gradient_norm, expected.gradient_norm, 1e-11 * expected.gradient_norm)
        << variant;
  }
}

TEST(Memory, ShardsOfParametersLeaveTwoLayersAndTheTablesWhole) {
  config::Experiment e = tiny_experiment();
  e.run.dtype = config::Dtype::bfloat16;
  e.model.layers = 6;
  e.parallel.data = 2;
  e.parallel.context = 2;
  e.parallel.shard = config::Shard::parameters;
  const config::Model& m = e.model;
  const std::int64_t layer =
      m.d_model * (2 * m.query_width() + 2 * m.kv_heads * m.head_dim() + 3 * m.ffn);
  const std::int64_t rest = 2 * m.vocab * m.d_model + (2 * m.layers + 1) * m.d_model;  // with norms
  const std::int64_t shard = (m.layers * layer + rest) / 4;
  const MemoryEstimate memory = least_memory(e);
  const std::int64_t weights = 2 * (shard + rest + 2 * layer);
  const std::int64_t gradients = 4 * (shard + rest + layer);
  const std::int64_t optimizer = 3 * 4 * shard;
  // Where four ranks do not divide a matrix, some own an element more.
  EXPECT_NEAR(static_cast<double>(memory.gradients), static_cast<double>(gradients), 100);
  EXPECT_NEAR(static_cast<double>(memory.optimizer), static_cast<double>(optimizer), 100);
  EXPECT_NEAR(static_cast<double>(memory.parameters),
              static_cast<double>(weights + gradients + optimizer), 200);
}

TEST(Memory, OfOtherStacksIsWhatTheySayThatTheyKeep) {
  config::Experiment e = tiny_experiment();
  e.run.dtype = config::Dtype::bfloat16;
  e.parallel.tensor = 2;
  e.parallel.data = e.parallel.context = e.parallel.pipeline = 1;
  e.batch.tokens = e.batch.microbatch;
  const config::Model& m = e.model;
  const auto own = least_memory(e);
  config::Software& software = e.cluster.software;
  software.gradients = config::Precision::stored;
  software.kept = {6, 2, 4, 4, 6, 10, 1};
  software.spread = 1.5;
  software.reserved = 1000;
  const auto rows = static_cast<double>(usual_rows(e));
  const auto width = static_cast<double>(m.d_model), ffn = static_cast<double>(m.ffn);
  const auto keys = static_cast<double>(m.kv_heads * m.head_dim());
  const double logits = (10.0 / 2 + 1) * static_cast<double>(m.vocab);
  const double attention = (4 * width + 4 * keys) / 2;
  const auto expect_activations = [&](double layers) {
    EXPECT_NEAR(static_cast<double>(least_memory(e).activations), 1.5 * rows * (layers + logits),
                2);
  };
  const auto layers = static_cast<double>(m.layers);
  expect_activations(layers * (6 * width / 2 + 2 * width + attention + 6 * ffn / 2));
  software.sequence_parallel = false;
  const double layer = 8 * width + attention + 6 * ffn / 2;
  expect_activations(layers * layer);
  e.run.recompute = config::Recompute::mlp;
  expect_activations(layers * (layer - 6 * ffn / 2) + 6 * ffn / 2);
  e.run.recompute = config::Recompute::attention;
  expect_activations(layers * (layer - attention) + attention);
  e.run.recompute = config::Recompute::layer;
  expect_activations(layers * 2 * width + layer - 2 * width);
  EXPECT_EQ(2 * least_memory(e).gradients, own.gradients);
  EXPECT_EQ(least_memory(e).other, own.other + 1000);
}

TEST(Memory, StreamsOfStagesAreOfTheTypeThatTravels) {
  config::Experiment e = tiny_experiment();
  e.run.dtype = config::Dtype::bfloat16;
  e.parallel.tensor = e.parallel.data = e.parallel.context = 1;
  e.parallel.pipeline = 2;
  const std::int64_t own = least_memory(e).communication;
  EXPECT_GT(own, 0);
  e.cluster.software.residual = config::Precision::stored;
  EXPECT_EQ(2 * least_memory(e).communication, own);
}

TEST(Memory, TheLimitIsTheExperimentsOrTheDevices) {
  const MemoryLimit device{100, "memory of a device"};
  config::Run run;
  EXPECT_EQ(memory_limit(run, device).bytes, 0) << "on a host";
  run.device = config::DeviceKind::cuda;
  EXPECT_EQ(memory_limit(run, device).source, device.source);
  run.memory = 7;
  EXPECT_EQ(memory_limit(run, device).bytes, 7);
}

TEST(Memory, MoreThanAllowedIsRefusedWithTheLargestPartAndWhatHelps) {
  const MemoryEstimate memory{1000, 5000, 200, 300};
  EXPECT_NO_THROW(require_memory({}, 0, memory)) << "no limit";
  EXPECT_NO_THROW(require_memory({memory.total(), "run.memory"}, 0, memory));
  try {
    require_memory({memory.total() - 1, "run.memory"}, 3, memory);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_THAT(error.what(),
                ::testing::AllOf(::testing::HasSubstr("run.memory"), ::testing::HasSubstr("rank 3"),
                                 ::testing::HasSubstr("activations"), ::testing::HasSubstr("6500"),
                                 ::testing::HasSubstr("run.recompute")));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace cadenza::exec
