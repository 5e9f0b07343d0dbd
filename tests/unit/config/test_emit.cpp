// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "../../../src/config/words.hpp"
#include "support.hpp"

namespace cadenza::config::test_emit {
namespace {

/// Draws valid experiments over all of their types, with awkward numbers and names.
class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}

  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  bool coin() { return integer(0, 1) == 1; }
  /// Any bits of a positive finite double, subnormal ones left out.
  double positive() {
    for (;;) {
      const auto value = std::bit_cast<double>(random_() >> 1);
      if (std::isnormal(value)) return value;
    }
  }
  /// One of all that there are, from `first` on.
  template <typename Choice>
  Choice any(int first = 0) {
    return static_cast<Choice>(integer(first, std::ssize(kWords<Choice>) - 1));
  }
  double unit() { return std::uniform_real_distribution<double>(0.0, 1.0)(random_); }
  std::string text() {
    std::string drawn(static_cast<std::size_t>(integer(1, 12)), ' ');
    for (char& c : drawn) c = static_cast<char>(integer(' ', '~'));
    return drawn;
  }

  Software software() {
    return {text(),
            text(),
            any<Precision>(),
            any<Precision>(),
            coin(),
            coin(),
            any<AttentionKernels>(),
            1 + unit(),
            1 + unit(),
            1 + unit(),
            coin(),
            coin(),
            coin(),
            unit(),
            coin(),
            {unit(), unit(), unit(), unit(), unit(), unit(), unit()},
            1 + unit(),
            integer(0, 1 << 30)};
  }

  Experiment experiment() {
    Experiment e;
    e.name = text() + "-";
    std::ranges::replace(e.name, '/', '-');
    e.seed = random_();
    const std::int64_t group = integer(1, 4);
    e.model = {integer(1, 9),
               0,
               0,
               integer(1, 5),
               integer(1, 99),
               integer(259, 70000),
               positive(),
               {std::max(1 + unit(), positive()), {}},
               coin()};
    e.model.heads = group * e.model.kv_heads;
    e.model.d_model = e.model.heads * 2 * integer(1, 8);
    e.model.own_head_dim = 2 * integer(0, 8);
    e.model.qkv_bias = coin();
    e.model.qk_norm = coin();
    const std::int64_t questions = integer(1, 16);
    e.data = {any<Source>(),
              {text(), text()},
              {positive(), positive()},
              Tokenizer::byte,
              integer(600, 1 << 30),
              coin(),
              any<TokenType>(),
              integer(0, 258),
              integer(1, 99),
              lengths(),
              {questions + integer(0, 16), questions, 0.25, 0.75, integer(1, 99),
               any<RetrievalTask>(), integer(1, 3), integer(1, 3)},
              {}};
    if (coin()) e.data.validation = {"0.25"};
    e.batch.microbatch = integer(2, 5000);
    e.parallel.data = integer(1, 5);
    e.batch.tokens = e.batch.microbatch * e.parallel.data * integer(1, 3);
    e.batch.packing = any<Packing>();
    e.batch.longest = 1.0 + unit();
    e.batch.break_even = integer(0, 9999);
    if (e.batch.packing == Packing::balanced) e.batch.outliers = {integer(1, 99), integer(99, 999)};
    e.parallel.shard = any<Shard>();
    const bool cad = coin();
    e.attention.placement = cad ? PlacementKind::cad : PlacementKind::colocated;
    e.attention.servers = integer(0, 3);
    e.attention.mixed = cad && e.attention.servers > 0 && coin();
    if (cad) e.attention.capacity = {{0.0, static_cast<double>(integer(1, 10000))}};
    e.model.rope.scaling = {any<RopeScalingKind>(1),
                            1 + unit(),
                            integer(1, 9999),
                            2 + unit(),
                            unit() + 0.5,
                            1 + unit(),
                            1 + unit(),
                            unit() + 0.5,
                            2 + unit(),
                            unit(),
                            coin()};
    e.attention.kind = any<AttentionKind>();
    if (e.attention.kind == AttentionKind::window) {
      e.attention.window = integer(1, 99);
      e.attention.sinks = integer(0, 9);
    }
    if (e.attention.kind == AttentionKind::prefix) e.attention.prefix = integer(1, 99);
    if (e.attention.kind == AttentionKind::dual_chunk) {
      e.attention.chunk = integer(50, 99);
      e.attention.local = integer(0, 49);
      e.attention.cap = any<ChunkCap>();
    }
    if (e.attention.kind == AttentionKind::vertical_slash) {
      e.attention.sparse.columns = integer(1, 999);
    }
    if (e.attention.kind == AttentionKind::xattention) {
      e.attention.sparse.threshold = 1 - unit() / 2;
    }
    if (coin()) e.attention.sharding = any<Sharding>();
    e.attention.shard_unit = any<ShardUnit>();
    e.attention.head_parallel = integer(1, 4);
    e.attention.inner_ring = integer(1, 4);
    e.attention.block = integer(1, 512);
    e.attention.tolerance = unit();
    e.attention.bound = any<Bound>();
    e.attention.priority = any<Priority>();
    e.attention.split_keys = coin();
    e.attention.inputs = any<Inputs>();
    const bool halves = e.attention.mask().is_causal() && e.attention.sparse_rule().block == 0;
    e.attention.overlap = halves ? any<Overlap>() : Overlap::none;
    e.attention.kernel = any<AttentionKernel>();
    e.optimizer = {OptimizerKind::adamw, positive(), {unit(), unit()}, positive(),
                   positive(),           positive(), integer(0, 50),   any<Schedule>()};
    e.run = {integer(0, 99),
             any<DeviceKind>(),
             coin(),
             any<Transport>(),
             any<Dtype>(),
             any<Precision>(),
             any<Recompute>(),
             false,
             any<Offload>(),
             integer(0, 1 << 30),
             1e6 * unit(),
             {integer(0, 9), integer(0, 9)},
             {integer(0, 9), integer(0, 9)},
             false};
    if (e.data.validation.empty()) e.run.validate.every = 0;
    if (e.run.dtype != Dtype::bfloat16) e.run.residual = Precision::sums;
    if (e.run.recompute == Recompute::attention || e.run.recompute == Recompute::layer) {
      e.attention.inputs = Inputs::resend;
      e.attention.overlap = Overlap::none;
    }
    e.trace = {coin(), coin()};
    const auto last = static_cast<double>(e.ranks() - 1);
    e.cluster = {coin() ? text() : "",
                 integer(0, 99),
                 1e-9 + unit(),
                 software(),
                 10 * unit(),
                 10 * unit(),
                 {},
                 {},
                 {},
                 {}};
    if (e.cluster.software.says_kept()) e.run.offload = Offload::none;
    if (e.run.device == DeviceKind::cuda && e.run.transport == Transport::mpi) {
      e.run.transport = Transport::staged;  // MPI is not given a device's memory
    }
    for (int i = 0; i < 3; ++i) e.cluster.slow_ranks.push_back({last, 1.0 - unit() / 2});
    if (last > 0) e.cluster.slow_links.push_back({0.0, last, 1.0 - unit() / 2});
    if (e.cluster.ranks_per_node > 0 && e.cluster.ranks_per_node < e.ranks()) {
      e.cluster.slow_adapters.push_back({1.0, 1.0 - unit() / 2, unit() / 2 + 0.25});
    }
    for (int i = 0; i < 2; ++i) {
      const auto phase = any<FaultPhase>();
      const auto work = phase == FaultPhase::optimizer ? FaultWork::all : any<FaultWork>();
      e.cluster.faults.push_back({e.ranks() - 1,
                                  1.0 - unit() / 2,
                                  1e-9 + unit(),
                                  1.0 - unit() / 2,
                                  unit(),
                                  0,
                                  phase,
                                  work,
                                  {integer(0, 9), integer(0, 9)}});
      e.cluster.faults.push_back({.rank = 0, .clock = unit() - 2, .steps = {}});
    }
    return e;
  }

 private:
  Lengths lengths() {
    return {any<Distribution>(),
            integer(1, 9),
            integer(9, 500),
            static_cast<double>(integer(1, 1 << 20)),
            positive(),
            positive(),
            {integer(1, 600), integer(1, 1 << 20)},
            text(),
            any<DrawRule>(),
            1e6 * (1 - unit())};
  }
  std::mt19937_64 random_;
};

void expect_same_numbers(const Experiment& a, const Experiment& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.seed, b.seed);
  EXPECT_EQ(a.model.norm_eps, b.model.norm_eps);
  EXPECT_EQ(a.model.rope.theta, b.model.rope.theta);
  EXPECT_EQ(a.model.rope.scaling.kind, b.model.rope.scaling.kind);
  EXPECT_EQ(a.model.rope.scaling.factor, b.model.rope.scaling.factor);
  EXPECT_EQ(a.model.rope.scaling.mscale_all_dim, b.model.rope.scaling.mscale_all_dim);
  EXPECT_EQ(a.model.rope.scaling.attention_factor, b.model.rope.scaling.attention_factor);
  EXPECT_EQ(a.model.rope.scaling.truncate, b.model.rope.scaling.truncate);
  EXPECT_EQ(a.model.d_model, b.model.d_model);
  EXPECT_EQ(a.model.own_head_dim, b.model.own_head_dim);
  EXPECT_EQ(a.model.qkv_bias, b.model.qkv_bias);
  EXPECT_EQ(a.model.qk_norm, b.model.qk_norm);
  EXPECT_EQ(a.model.tie_embeddings, b.model.tie_embeddings);
  EXPECT_EQ(a.data.source, b.data.source);
  EXPECT_EQ(a.data.path, b.data.path);
  EXPECT_EQ(a.data.weights, b.data.weights);
  EXPECT_EQ(a.data.validation, b.data.validation);
  EXPECT_EQ(a.run.validate.every, b.run.validate.every);
  EXPECT_EQ(a.run.validate.steps, b.run.validate.steps);
  EXPECT_EQ(a.data.max_document, b.data.max_document);
  EXPECT_EQ(a.data.lengths.distribution, b.data.lengths.distribution);
  EXPECT_EQ(a.data.lengths.values, b.data.lengths.values);
  EXPECT_EQ(a.data.lengths.sigma, b.data.lengths.sigma);
  EXPECT_EQ(a.data.lengths.path, b.data.lengths.path);
  EXPECT_EQ(a.data.lengths.rule, b.data.lengths.rule);
  EXPECT_EQ(a.data.lengths.stretch, b.data.lengths.stretch);
  EXPECT_EQ(a.batch.tokens, b.batch.tokens);
  EXPECT_EQ(a.attention.kind, b.attention.kind);
  EXPECT_EQ(a.attention.sparse.threshold, b.attention.sparse.threshold);
  EXPECT_EQ(a.attention.servers, b.attention.servers);
  EXPECT_EQ(a.attention.tolerance, b.attention.tolerance);
  EXPECT_EQ(a.optimizer.lr, b.optimizer.lr);
  EXPECT_EQ(a.optimizer.betas, b.optimizer.betas);
  EXPECT_EQ(a.optimizer.schedule, b.optimizer.schedule);
  EXPECT_EQ(a.run.dtype, b.run.dtype);
  EXPECT_EQ(a.run.checkpoint.every, b.run.checkpoint.every);
  EXPECT_EQ(a.run.checkpoint.keep, b.run.checkpoint.keep);
  EXPECT_EQ(a.run.timeout, b.run.timeout);
  EXPECT_EQ(a.trace.memory, b.trace.memory);
  EXPECT_EQ(a.cluster.machine, b.cluster.machine);
  EXPECT_EQ(a.cluster.bandwidth, b.cluster.bandwidth);
  EXPECT_EQ(a.cluster.speed_spread, b.cluster.speed_spread);
  EXPECT_EQ(a.attention.capacity, b.attention.capacity);
  EXPECT_EQ(a.cluster.slow_ranks, b.cluster.slow_ranks);
  EXPECT_EQ(a.cluster.slow_links, b.cluster.slow_links);
  EXPECT_EQ(a.cluster.slow_adapters, b.cluster.slow_adapters);
  EXPECT_EQ(a.cluster.faults, b.cluster.faults);
}

TEST(Emit, ReadsBackToTheSame) {
  Draw draw(20260801);
  for (int i = 0; i < 500; ++i) {
    const Experiment e = draw.experiment();
    const std::string yaml = to_yaml(e);
    Experiment back;
    ASSERT_NO_THROW(back = parse(yaml)) << yaml;
    expect_same_numbers(e, back);
    ASSERT_EQ(to_yaml(back), yaml);
  }
}

TEST(Emit, IsStableAndReadable) {
  const std::string yaml = to_yaml(parse(kGood));
  EXPECT_THAT(yaml, ::testing::StartsWith("name: \"small\"\nseed: 1\nmodel:\n  layers: 2\n"));
  EXPECT_THAT(yaml, ::testing::HasSubstr("  kv_heads: 4\n"));
  EXPECT_THAT(yaml, ::testing::HasSubstr("  norm_eps: 1.0e-05\n  rope:\n    theta: 10000.0\n"));
  EXPECT_THAT(yaml, ::testing::HasSubstr("  path: [\"corpus\"]\n"));
  EXPECT_THAT(yaml, ::testing::HasSubstr("  servers: in_place\n"));
  EXPECT_THAT(yaml, ::testing::HasSubstr("  betas: [0.9, 0.95]\n"));
  EXPECT_THAT(yaml, ::testing::HasSubstr("trace:\n  events: true\n  memory: true\ncluster:\n"));
  EXPECT_THAT(yaml, ::testing::EndsWith(
                        "  slow_ranks: []\n  slow_links: []\n  slow_adapters: []\n  faults: []\n"));
}

}  // namespace
}  // namespace cadenza::config::test_emit
