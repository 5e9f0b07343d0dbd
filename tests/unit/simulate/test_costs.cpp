// SPDX-License-Identifier: Apache-2.0
// Costs against what can be worked out by hand.
#include "cadenza/simulate/costs.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <random>

#include "cadenza/base/error.hpp"
#include "cadenza/cost/flops.hpp"
#include "cadenza/cost/product_time.hpp"
#include "cadenza/program/operation_work.hpp"
#include "unit/tiny_model.hpp"

namespace cadenza::simulate::test_costs {
namespace {

using config::Machine;
using cost::Copied;
using cost::count_tiles;
using cost::ProductTime;
using cost::tile_weight;
using cost::Tiles;
using plan::PlacedTask;
using program::Operation;
using program::OperationShapes;
using program::Pass;
using program::Product;
using program::ProductKind;

config::Experiment experiment() {
  config::Experiment e;
  e.model = tiny_model(4);
  e.model.d_model = 64;
  e.model.ffn = 96;
  e.model.vocab = 300;
  e.parallel.data = 4;
  e.parallel.tensor = 2;
  return e;
}

Costs costs_of(const Machine& machine, const config::Experiment& e = experiment()) {
  return Costs(machine, e, program::Layout(e));
}

program::Instruction step(Operation operation, Pass pass, bool recompute = false) {
  program::Instruction instruction;
  instruction.operation = operation;
  instruction.pass = pass;
  instruction.recompute = recompute;
  return instruction;
}

PlacedTask task(Range q, Range k, Band band = Band::causal(), Range heads = {0, 1}) {
  return {0, {0, q, k, heads, band}, 0};
}

double attend(const Costs& costs, const PlacedTask& placed, Pass pass = Pass::forward) {
  const PlacedTask* const tasks[] = {&placed};
  return costs.attend(tasks, pass);
}

// --- tiles ---

/// What count_tiles has in closed form.
Tiles counted(const Task& task, std::int64_t tile) {
  Tiles tiles;
  for (std::int64_t begin = task.q.begin; begin < task.q.end; begin += tile) {
    const std::int64_t last = std::min(begin + tile, task.q.end) - 1;
    std::int64_t seen = 0;
    for (std::int64_t key = task.k.begin; key < task.k.end; key += tile) {
      const Range keys{key, std::min(key + tile, task.k.end)};
      seen += allowed_pairs({begin, last + 1}, keys, task.band) > 0 ? 1 : 0;
    }
    tiles.keys += seen;
    tiles.queries += seen > 0 ? 1 : 0;
  }
  return tiles;
}

TEST(Tiles, AreWhatALoopCounts) {
  std::mt19937_64 random(6);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int i = 0; i < 1500; ++i) {
    const std::int64_t q = draw(0, 900), k = draw(0, 900);
    Band band = draw(0, 1) == 0 ? Band::full() : Band::causal(draw(-400, 400));
    if (draw(0, 1) == 0) band.low = std::min(band.high, draw(-600, 200));
    const Task random_task{0, {q, q + draw(0, 900)}, {k, k + draw(0, 900)}, {0, 1}, band};
    const std::int64_t tile = draw(0, 3) == 0 ? 1 : draw(1, 130);
    const Tiles expected = random_task.k.empty() ? Tiles{} : counted(random_task, tile);
    const Tiles found = count_tiles(random_task, tile);
    ASSERT_EQ(found.keys, expected.keys) << random_task.q.begin << " " << random_task.q.end << " "
                                         << random_task.k.begin << " " << random_task.k.end;
    ASSERT_EQ(found.queries, expected.queries);
  }
}

TEST(Tiles, OfOneTokenArePairs) {
  const Task causal{0, {100, 300}, {0, 300}, {0, 1}, Band::causal()};
  EXPECT_EQ(count_tiles(causal, 1).keys, allowed_pairs(causal));
}

// --- attention ---

TEST(Attend, TakesItsFlopsWithoutTables) {
  Machine machine;
  const Costs costs = costs_of(machine);
  const PlacedTask whole = task({0, 1000}, {0, 1000}, Band::causal(), {0, 2});
  const double flops = forward_flops(whole.task, 16);
  EXPECT_NEAR(attend(costs, whole), flops / 5e10, 1e-15);
  EXPECT_NEAR(attend(costs, whole, Pass::backward), 2.5 * flops / 5e10, 1e-15);
}

/// A tile takes 1 us, or 2 us for 128 queries, with 10 us for a call.
Machine table_machine() {
  Machine machine;
  machine.attention.heads = 2;
  machine.attention.kv_heads = 2;
  machine.attention.head_dim = 16;
  machine.attention.tile = 128;
  machine.attention.tile_overhead = 1;
  machine.attention.launch_seconds = 1e-5;
  const auto row = [](double queries, double keys, double tile_seconds) {
    const Task last{0,
                    {static_cast<std::int64_t>(keys - queries), static_cast<std::int64_t>(keys)},
                    {0, static_cast<std::int64_t>(keys)},
                    {0, 1}};
    return config::Row<3>{queries, keys, 1e-5 + 2 * tile_seconds * tile_weight(last, 128, 1)};
  };
  machine.attention.forward = {row(128, 128, 2e-6), row(128, 2048, 2e-6), row(2048, 2048, 1e-6)};
  machine.attention.backward = machine.attention.forward;
  return machine;
}

TEST(Attend, FindsWhatWasMeasured) {
  const Machine machine = table_machine();
  const Costs costs = costs_of(machine);
  for (const auto& [queries, keys, seconds] : machine.attention.forward) {
    const auto end = static_cast<std::int64_t>(keys);
    const auto begin = end - static_cast<std::int64_t>(queries);
    EXPECT_NEAR(attend(costs, task({begin, end}, {0, end}, Band::causal(), {0, 2})), seconds,
                1e-12);
  }
  EXPECT_TRUE(costs.extrapolations().empty());
}

TEST(Attend, LiesBetweenMeasurements) {
  const Costs costs = costs_of(table_machine());
  // 512 queries are half way from 128 to 2048 in the logarithm: 1.5 us a tile.
  const PlacedTask between = task({0, 512}, {0, 512});
  EXPECT_NEAR(attend(costs, between), 1e-5 + 1.5e-6 * (1 + 2 + 3 + 4 + 4), 1e-12);
  // All tiles of keys, and one for each of the four tiles of queries.
  const PlacedTask all = task({0, 512}, {0, 256}, Band::full());
  EXPECT_NEAR(attend(costs, all), 1e-5 + 1.5e-6 * (8 + 4), 1e-12);
}

TEST(Attend, PaysAWholeTileForAPart) {
  const Costs costs = costs_of(table_machine());
  EXPECT_DOUBLE_EQ(attend(costs, task({0, 1}, {0, 1})), attend(costs, task({0, 128}, {0, 128})));
  EXPECT_GT(attend(costs, task({0, 129}, {0, 129})), attend(costs, task({0, 128}, {0, 128})));
}

TEST(Attend, CountsTheCallOnce) {
  const Costs costs = costs_of(table_machine());
  const PlacedTask one = task({0, 128}, {0, 128});
  const PlacedTask* const two[] = {&one, &one};
  EXPECT_NEAR(costs.attend(two, Pass::forward), 2 * attend(costs, one) - 1e-5, 1e-15);
}

TEST(Attend, SeesNothingForNothing) {
  const Costs costs = costs_of(table_machine());
  EXPECT_EQ(attend(costs, task({0, 128}, {128, 256})), 1e-5);
}

// --- sparse attention ---

TEST(Sparse, PairsTakeLongerTheSmallerTheBlock) {
  Machine machine = table_machine();
  PlacedTask sparse = task({0, 2048}, {0, 2048});
  // The longest dense task of the table takes 1 us for 128 x 128 pairs.
  const double dense = 1e-6 / (128 * 128) * (2048.0 * 2049 / 2);
  sparse.kept = 0.25;
  sparse.block = 64;
  EXPECT_NEAR(attend(costs_of(machine), sparse) - 1e-5, 0.25 * 1.25 * dense, 1e-12);  // nominal
  machine.attention.sparse.table = {{16, 5, 7}, {64, 2, 3}};
  const Costs costs = costs_of(machine);
  const auto pair = [&](std::int64_t block, Pass pass) {
    sparse.block = block;
    return (attend(costs, sparse, pass) - 1e-5) / (0.25 * dense);
  };
  EXPECT_NEAR(pair(64, Pass::forward), 2, 1e-9);
  EXPECT_NEAR(pair(64, Pass::backward), 3, 1e-9);
  EXPECT_NEAR(pair(32, Pass::forward), 3.5, 1e-9);  // half way in the logarithm
  EXPECT_NEAR(pair(128, Pass::forward), 2, 1e-9);
  EXPECT_NEAR(pair(1, Pass::backward), 7, 1e-9);
  // Blocks that adjoin have times of their own; without them, those of blocks that lie apart.
  machine.attention.sparse.adjoining = {{64, 1.2, 1.4}};
  const Costs with_adjoining = costs_of(machine);
  sparse.block = 64;
  for (const auto& [share, expected] : {std::pair{0.0, 2.0}, {0.5, 1.6}, {1.0, 1.2}}) {
    sparse.adjoining = share;
    EXPECT_NEAR((attend(with_adjoining, sparse) - 1e-5) / (0.25 * dense), expected, 1e-9);
    EXPECT_NEAR((attend(costs, sparse) - 1e-5) / (0.25 * dense), 2, 1e-9);
  }
  // As many pairs in shorter tasks take as long.
  PlacedTask part = task({0, 64}, {0, 2048}, Band::full());
  part.block = 64;
  EXPECT_NEAR(attend(costs, part) - 1e-5, 2 * 64 * 2048 * 1e-6 / (128 * 128), 1e-12);
}

TEST(Sparse, IndexTakesItsWork) {
  Machine machine;
  machine.attention.index = {1e9, 1e6, 1e3};
  const Costs costs = costs_of(machine);
  EXPECT_DOUBLE_EQ(costs.index_seconds({.flops = 5e9, .scores = 3e6, .masses = 7e3}), 15);
  const auto seconds = [&](plan::IndexRound round) {
    return costs.index_seconds(plan::vertical_slash_work(round, 100, 16));
  };
  EXPECT_DOUBLE_EQ(seconds(plan::IndexRound::observed), 100 * 64 * 2 * 16 / 1e9);
  EXPECT_DOUBLE_EQ(seconds(plan::IndexRound::peak), 100 * 64 / 1e6);
  EXPECT_DOUBLE_EQ(seconds(plan::IndexRound::sum), 100 * 64 / 1e6);
  EXPECT_DOUBLE_EQ(seconds(plan::IndexRound::mass), 2 * 100 / 1e3);
  EXPECT_EQ(seconds(plan::IndexRound::pattern), 0);
}

TEST(Attend, SaysWhatItExtrapolates) {
  config::Experiment e = experiment();
  e.model.heads = e.model.kv_heads = 2;  // head_dim 32
  const Costs costs = costs_of(table_machine(), e);
  EXPECT_THAT(costs.extrapolations(),
              ::testing::ElementsAre("attention: head_dim 32, measured with "
                                     "16"));
  const double inside = attend(costs, task({0, 2048}, {0, 2048}));
  const double outside = attend(costs, task({0, 8192}, {0, 8192}));
  const auto tiles = [](double n) { return n * (n + 1) / 2 + n; };
  EXPECT_NEAR((outside - 1e-5) / (inside - 1e-5), tiles(64) / tiles(16), 1e-9);
  attend(costs, task({0, 128}, {0, 128}), Pass::backward);
  EXPECT_THAT(costs.extrapolations(),
              ::testing::ElementsAre(
                  "attention forward: 8192 queries x 8192 keys, measured up to 2048 x 2048",
                  "attention: head_dim 32, measured with 16"));
}

// --- products ---

TEST(Products, OfAnySizeMoveTheirFactorsAndResult) {
  config::ProductRates rates;
  rates.flops_per_second = 1000;
  const Product product{ProductKind::forward, 10, 20, 30};
  EXPECT_DOUBLE_EQ(ProductTime(rates, 2).seconds(product), 12);
  rates.bytes_per_second = 100;
  EXPECT_DOUBLE_EQ(ProductTime(rates, 2).seconds(product), 12 + 2 * (200 + 300 + 600) / 100.0);
  rates.table = {{10, 20, 30, 2000}};
  EXPECT_DOUBLE_EQ(ProductTime(rates, 2).seconds(product), 6);  // measured with all of it
}

TEST(Products, TakeTheNearestShapeAndTheRateBetweenRows) {
  config::ProductRates rates;
  rates.table = {{128, 64, 64, 1e9}, {512, 64, 64, 3e9}, {128, 1024, 1024, 8e9}};
  ProductTime time(rates, 2);
  const auto rate = [&](double rows, double columns, double depth) {
    const Product product{ProductKind::forward, rows, columns, depth};
    return product.flops() / time.seconds(product);
  };
  EXPECT_NEAR(rate(128, 64, 64), 1e9, 1);
  EXPECT_NEAR(rate(256, 64, 64), 2e9, 1);
  EXPECT_NEAR(rate(1, 64, 64), 1e9, 1);
  EXPECT_NEAR(rate(1 << 20, 80, 50), 3e9, 1);
  EXPECT_TRUE(time.extrapolations().empty());
  EXPECT_NEAR(rate(128, 1024, 16384), 8e9, 1);
  EXPECT_THAT(time.extrapolations(),
              ::testing::ElementsAre(
                  "products: 1024 x 16384 (columns x depth), nearest measured 1024 x 1024"));
  EXPECT_EQ(time.seconds({ProductKind::forward, 0, 64, 64}), 0);
}

// --- operations ---

TEST(Operations, HaveTheFlopsOfTheModelsFormulas) {
  const config::Experiment e = experiment();
  const OperationShapes shapes(e, program::Layout(e));
  const auto flops = [&](Operation operation, Pass pass) {
    return shapes.work(step(operation, pass), 0, 128).flops();
  };
  const double inputs = cost::attention_inputs_flops(e.model, 2, 128);
  const double outputs = cost::attention_outputs_flops(e.model, 2, 128);
  EXPECT_DOUBLE_EQ(flops(Operation::attention_inputs, Pass::forward), inputs);
  EXPECT_DOUBLE_EQ(flops(Operation::attention_inputs, Pass::backward), 2 * inputs);
  EXPECT_DOUBLE_EQ(flops(Operation::attention_outputs, Pass::forward), outputs);
  EXPECT_DOUBLE_EQ(flops(Operation::attention_outputs, Pass::backward), 2 * outputs);
  EXPECT_DOUBLE_EQ(flops(Operation::loss, Pass::backward), 3 * cost::head_flops(e.model, 2, 128));
  EXPECT_EQ(flops(Operation::optimize, Pass::backward), 0);
}

TEST(Operations, HaveTheFlopsOfWhatIsRecomputed) {
  for (const auto recompute : {config::Recompute::none, config::Recompute::mlp,
                               config::Recompute::attention, config::Recompute::layer}) {
    config::Experiment e = experiment();
    e.run.recompute = recompute;
    const OperationShapes shapes(e, program::Layout(e));
    const double inputs = cost::attention_inputs_flops(e.model, 2, 128);
    const double outputs = cost::attention_outputs_flops(e.model, 2, 128);
    const double matrix = 2.0 * 128 * static_cast<double>(e.model.d_model * e.model.ffn) / 2;
    const auto flops = [&](Operation operation, Pass pass, bool recompute) {
      return shapes.work(step(operation, pass, recompute), 0, 128).flops();
    };
    EXPECT_DOUBLE_EQ(flops(Operation::attention_inputs, Pass::forward, true), inputs);
    // Gate and up are made again in the backward pass with `recompute: mlp`, down never is.
    EXPECT_DOUBLE_EQ(flops(Operation::attention_outputs, Pass::forward, true), outputs - matrix);
    EXPECT_DOUBLE_EQ(flops(Operation::attention_outputs, Pass::backward, false),
                     2 * outputs + (recompute == config::Recompute::mlp ? 2 * matrix : 0));
  }
}

TEST(Operations, RecomputeWhatTheModelRecomputes) {
  config::Experiment e = experiment();
  const double plain =
      costs_of({}, e).compute(step(Operation::attention_outputs, Pass::backward), 0, 128);
  e.run.recompute = config::Recompute::mlp;
  const double again =
      costs_of({}, e).compute(step(Operation::attention_outputs, Pass::backward), 0, 128);
  EXPECT_NEAR(again - plain, 2.0 * 128 * 64 * 96 / 5e10, 1e-12);  // gate and up of half the width
  const Costs costs = costs_of({}, e);
  EXPECT_NEAR(costs.compute(step(Operation::attention_inputs, Pass::forward, true), 0, 128),
              costs.compute(step(Operation::attention_inputs, Pass::forward), 0, 128), 1e-12);
  EXPECT_LT(costs.compute(step(Operation::attention_outputs, Pass::forward, true), 0, 128),
            costs.compute(step(Operation::attention_outputs, Pass::forward), 0, 128));
}

TEST(Operations, ReadAndWriteAtTheRateOfTheirPass) {
  Machine machine;
  machine.products.flops_per_second = 1e30;
  machine.element_wise.bytes_per_second = 1e9;
  const Costs slow = costs_of(machine);
  machine.element_wise.attention_inputs = {2e9, 4e9};
  machine.element_wise.optimizer = 8e9;
  const Costs fast = costs_of(machine);
  const auto ratio = [&](Operation operation, Pass pass) {
    return slow.compute(step(operation, pass), 0, 64) / fast.compute(step(operation, pass), 0, 64);
  };
  EXPECT_NEAR(ratio(Operation::attention_inputs, Pass::forward), 2, 1e-9);
  EXPECT_NEAR(ratio(Operation::attention_inputs, Pass::backward), 4, 1e-9);
  EXPECT_NEAR(ratio(Operation::optimize, Pass::backward), 8, 1e-9);
  EXPECT_NEAR(ratio(Operation::attention_outputs, Pass::backward), 1, 1e-9);
  EXPECT_EQ(slow.pack(1000), 1e-6);
  machine.element_wise.copies = {5e8, 2.5e8};
  EXPECT_EQ(costs_of(machine).pack(1000), 2e-6);
  EXPECT_EQ(costs_of(machine).unpack(1000), 4e-6);
  EXPECT_EQ(costs_of(machine).pack(1000, Copied::slices), 2e-6);
  machine.element_wise.slices = {1e8, 2e8};
  EXPECT_EQ(costs_of(machine).pack(1000, Copied::slices), 1e-5);
  EXPECT_EQ(costs_of(machine).unpack(1000, Copied::slices), 5e-6);
  EXPECT_EQ(costs_of(machine).pack(1000), 2e-6);
  // A stream is one piece of memory: it is read and written in order, whatever rows cost.
  EXPECT_EQ(costs_of(machine).pack(1000, Copied::streams), 2e-6);
  machine.element_wise.copies = {1e6, 1e6};
  EXPECT_EQ(costs_of(machine).unpack(1000, Copied::streams), 2e-6);
  machine.element_wise.streams = {1e8, 5e7};
  EXPECT_EQ(costs_of(machine).pack(1000, Copied::streams), 1e-5);
  EXPECT_EQ(costs_of(machine).unpack(1000, Copied::streams), 2e-5);
}

/// Seconds at 1 byte per second that a key of the model adds to attention_inputs of 128 rows.
double bytes_added(bool config::Model::*key, Pass pass) {
  Machine machine;
  machine.products.flops_per_second = 1e300;
  machine.element_wise.bytes_per_second = 1;
  config::Experiment e = experiment();
  const program::Instruction inputs = step(Operation::attention_inputs, pass);
  const double plain = costs_of(machine, e).compute(inputs, 0, 128);
  e.model.*key = true;
  return costs_of(machine, e).compute(inputs, 0, 128) - plain;
}

/// On one of two tensor ranks: Q of 32 columns, K and V of 16, of 4 bytes.
TEST(Operations, ReadAndWriteWhatBiasesAreAddedTo) {
  EXPECT_NEAR(bytes_added(&config::Model::qkv_bias, Pass::forward), 128 * 64 * 2 * 4, 1e-6);
  EXPECT_NEAR(bytes_added(&config::Model::qkv_bias, Pass::backward), 128 * 64 * 4, 1e-6);
}

TEST(Operations, ReadAndWriteWhatHeadsAreNormed) {
  EXPECT_NEAR(bytes_added(&config::Model::qk_norm, Pass::forward), 128 * 48 * 2 * 4, 1e-6);
  EXPECT_NEAR(bytes_added(&config::Model::qk_norm, Pass::backward), 128 * 48 * 3 * 4, 1e-6);
}

TEST(Operations, UpdateOwnedParametersOnly) {
  config::Experiment e = experiment();
  Machine machine;
  machine.element_wise.bytes_per_second = 1;
  const program::Instruction update = step(Operation::optimize, Pass::backward);
  const double all = costs_of(machine, e).compute(update, 0, 0);
  // 7 numbers of 4 bytes: layers, embedding and head, half of each on a tensor rank.
  const auto layers = static_cast<double>(4 * cost::layer_parameters(e.model));
  EXPECT_NEAR(all, 28.0 * (layers + 2 * 300 * 64) / 2, 1e-6);
  const program::Instruction norm = step(Operation::gradient_norm, Pass::backward);
  EXPECT_NEAR(costs_of(machine, e).compute(norm, 0, 0), all / 7, 1e-6);
  e.parallel.shard = config::Shard::optimizer;
  EXPECT_NEAR(costs_of(machine, e).compute(update, 0, 0), all / 4, 1e-6);
  EXPECT_EQ(costs_of(machine, e).compute(step(Operation::wait, Pass::forward), 0, 99), 0);
}

// --- links ---

Machine two_nodes() {
  Machine machine;
  machine.ranks_per_node = 4;
  machine.links.inside = {1e-6, 100};
  machine.links.between = {1e-5, 10};
  machine.links.adapters = 2;
  return machine;
}

TEST(Links, KnowNodesAndAdapters) {
  const Costs costs = costs_of(two_nodes());
  EXPECT_EQ(costs.node_of(3), 0);
  EXPECT_EQ(costs.node_of(4), 1);
  EXPECT_EQ(costs.adapter_of(1), 0);
  EXPECT_EQ(costs.adapter_of(2), 1);
  EXPECT_EQ(costs.adapter_of(4), 2);
  EXPECT_FALSE(costs.way(0, 3).between_nodes);
  EXPECT_EQ(costs.way(0, 3).bytes_per_second, 100);
  EXPECT_TRUE(costs.way(3, 4).between_nodes);
  EXPECT_EQ(costs.way(3, 4).latency_seconds, 1e-5);
  config::Experiment e = experiment();
  e.cluster.ranks_per_node = 2;
  EXPECT_EQ(costs_of(two_nodes(), e).node_of(3), 1);
  EXPECT_EQ(costs_of({}).node_of(7), 0);
}

TEST(Links, HaveAFactorBetweenNodes) {
  config::Experiment e = experiment();
  e.cluster.bandwidth = 3;
  const Costs costs = costs_of(two_nodes(), e);
  EXPECT_EQ(costs.way(3, 4).bytes_per_second, 30);
  EXPECT_EQ(costs.way(3, 4).latency_seconds, 1e-5);
  EXPECT_EQ(costs.way(0, 3).bytes_per_second, 100);
}

TEST(Links, CanBeSlow) {
  config::Experiment e = experiment();
  e.cluster.slow_links = {{3, 4, 0.5}};
  const Costs costs = costs_of(two_nodes(), e);
  EXPECT_EQ(costs.way(3, 4).bytes_per_second, 5);
  EXPECT_EQ(costs.way(4, 3).bytes_per_second, 5);
  EXPECT_EQ(costs.way(3, 5).bytes_per_second, 10);
  const Rank group[] = {3, 4};
  EXPECT_NEAR(costs.collective(Collective::all_gather, 100, group),
              2 * costs_of(two_nodes()).collective(Collective::all_gather, 100, group), 1e-4);
}

TEST(Links, OfANodeCanBeSlowInOneDirection) {
  config::Experiment e = experiment();
  e.cluster.slow_adapters = {{1, 0.5, 0.25}};
  e.cluster.slow_links = {{3, 4, 0.1}};
  const Costs costs = costs_of(two_nodes(), e), even = costs_of(two_nodes());
  EXPECT_EQ(costs.way(5, 2).bytes_per_second, 5);
  EXPECT_EQ(costs.way(2, 5).bytes_per_second, 2.5);
  EXPECT_EQ(costs.way(3, 4).bytes_per_second, 1) << "what limits most";
  EXPECT_EQ(costs.way(5, 6).bytes_per_second, 100);
  const Rank inside[] = {4, 5}, apart[] = {2, 6};
  EXPECT_EQ(costs.collective(Collective::all_gather, 100, inside),
            even.collective(Collective::all_gather, 100, inside));
  EXPECT_NEAR(costs.collective(Collective::all_gather, 100, apart),
              4 * even.collective(Collective::all_gather, 100, apart), 1e-4);
}

TEST(Links, InsideANodeThatAreSlowDoNotSlowThoseBetweenNodes) {
  config::Experiment e = experiment();
  e.cluster.slow_links = {{0, 1, 0.5}};
  const Rank all[] = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(costs_of(two_nodes(), e).collective(Collective::all_gather, 100, all),
            costs_of(two_nodes()).collective(Collective::all_gather, 100, all))
      << "50 bytes per second are more than both adapters of a node have";
}

TEST(Links, OverManyNodesHaveTheFabricsShare) {
  Machine machine = two_nodes();
  machine.links.fabric = {2, 0.5};
  const Rank two[] = {0, 4}, three[] = {0, 4, 8};
  const auto seconds = [&](const Machine& m, std::span<const Rank> group) {
    return costs_of(m).collective(Collective::all_gather, 100, group);
  };
  EXPECT_EQ(seconds(machine, two), seconds(two_nodes(), two));
  EXPECT_NEAR(seconds(machine, three), 2 * seconds(two_nodes(), three), 1e-4);
}

TEST(Links, TakeTheirTurnsInARing) {
  const Costs costs = costs_of(two_nodes());
  const Rank inside[] = {0, 1, 2, 3};
  EXPECT_NEAR(costs.collective(Collective::all_gather, 400, inside), 3 * (1e-6 + 1), 1e-12);
  EXPECT_NEAR(costs.collective(Collective::reduce_scatter, 400, inside), 3 * (1e-6 + 1), 1e-12);
  EXPECT_NEAR(costs.collective(Collective::all_reduce, 400, inside), 6 * (1e-6 + 1), 1e-12);
  // One of four ranks of a node has half an adapter; all of them have both.
  const Rank apart[] = {0, 4};
  EXPECT_NEAR(costs.collective(Collective::all_gather, 10, apart), 1e-5 + 1, 1e-12);
  const Rank all[] = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_NEAR(costs.collective(Collective::all_gather, 160, all), 7 * (1e-5 + 1), 1e-12);
  const Rank alone[] = {5};
  EXPECT_EQ(costs.collective(Collective::all_reduce, 1e9, alone), 0);
}

TEST(Links, SumANumberInATree) {
  const Costs costs = costs_of(two_nodes());
  const Rank all[] = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_NEAR(costs.collective(Collective::all_reduce, 1e-9, all), 6 * 1e-5, 1e-8);
}

TEST(Costs, RefusesNumbersOfAnotherType) {
  config::Experiment e = experiment();
  e.cluster.machine = "h200.yaml";
  Machine machine;
  machine.dtype = config::Dtype::bfloat16;
  try {
    costs_of(machine, e);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_STREQ(error.what(),
                 "cluster.machine: found h200.yaml, measured in bfloat16; valid: a machine "
                 "measured in run.dtype = float32");
  }
  e.cluster.machine.clear();  // nominal rates are of no type
  EXPECT_NO_THROW(costs_of(machine, e));
}

}  // namespace
}  // namespace cadenza::simulate::test_costs
