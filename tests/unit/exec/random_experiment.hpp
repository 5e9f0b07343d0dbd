// SPDX-License-Identifier: Apache-2.0
// Random experiments of every layout and placement, small enough to run many of them.
#pragma once

#include <fmt/format.h>

#include "cadenza/base/error.hpp"
#include "cadenza/config/load.hpp"
#include "unit/exec/tiny.hpp"
#include "unit/plan/cases.hpp"

namespace cadenza::exec::testing {

using plan::test::Draw;

inline const std::vector<config::PlacementKind>& all_placements() {
  using config::PlacementKind;
  static const std::vector<PlacementKind> kAll = {
      PlacementKind::cad,         PlacementKind::all_gather, PlacementKind::ring,
      PlacementKind::zigzag,      PlacementKind::striped,    PlacementKind::block_striped,
      PlacementKind::ulysses,     PlacementKind::cad,        PlacementKind::ulysses_ring,
      PlacementKind::double_ring, PlacementKind::colocated,  PlacementKind::dynamic};
  return kAll;
}

/// Deals the prime factors of `trainers` to the four axes of the layout.
inline void draw_axes(Draw& draw, std::int64_t trainers, config::Parallel& parallel) {
  for (std::int64_t factor = 2; trainers > 1; ++factor) {
    for (; trainers % factor == 0; trainers /= factor) {
      // Twice what config refuses most often beside other choices.
      std::int64_t* axis = draw.of(std::vector<std::int64_t*>{
          &parallel.data, &parallel.pipeline, &parallel.pipeline, &parallel.tensor,
          &parallel.tensor, &parallel.context, &parallel.context});
      *axis *= factor;
    }
  }
}

inline void draw_model(Draw& draw, config::Experiment& e) {
  struct Heads {
    std::int64_t heads, kv_heads, dim;
  };
  const auto heads = draw.of(std::vector<Heads>{
      {4, 2, 8}, {4, 4, 4}, {4, 1, 8}, {8, 8, 4}, {8, 2, 4}, {6, 3, 4}, {10, 5, 2}, {7, 7, 2}});
  e.model.heads = heads.heads;
  e.model.kv_heads = heads.kv_heads;
  e.model.d_model = heads.heads * heads.dim;
  if (draw.between(0, 3) == 0) {
    e.model.own_head_dim = heads.dim;
    e.model.d_model = draw.of(std::vector<std::int64_t>{24, 35});
  }
  e.model.ffn = draw.of(std::vector<std::int64_t>{48, 70});
  const std::int64_t parts = e.parallel.pipeline * e.parallel.chunks;
  e.model.layers = draw.between(parts, parts > 2 ? parts + 1 : 2 * parts);
  if (e.parallel.pipeline > 1 && draw.between(0, 2) == 0) {
    std::vector<std::int64_t>& stages = e.parallel.stages;
    stages.assign(static_cast<std::size_t>(parts), 1);
    for (std::int64_t more = e.model.layers - parts; more > 0; --more) {
      ++stages[static_cast<std::size_t>(draw.between(0, parts - 1))];
    }
  }
  e.model.tie_embeddings = e.parallel.pipeline == 1 && draw.between(0, 2) == 0;
  e.model.qkv_bias = draw.between(0, 2) == 0;
  e.model.qk_norm = draw.between(0, 2) == 0;
}

/// Lengths of one token, of a whole microbatch and of all between.
inline void draw_batch(Draw& draw, config::Experiment& e) {
  const std::int64_t microbatches = draw.between(1, 3) * e.parallel.pipeline;
  e.batch.microbatch = draw.between(40, 40 + 800 / (microbatches * e.parallel.data));
  e.batch.tokens = e.batch.microbatch * e.parallel.data * microbatches;
  e.batch.packing = draw.of(std::vector<config::Packing>{
      config::Packing::fixed, config::Packing::fixed, config::Packing::pooled,
      config::Packing::balanced, config::Packing::best_fit});
  e.data.max_document = 0;
  e.data.lengths.median = static_cast<double>(draw.of(std::vector<std::int64_t>{2, 20, 60, 400}));
}

inline void draw_attention(Draw& draw, config::Experiment& e) {
  config::Attention& a = e.attention;
  a.sharding = draw.any<config::Sharding>();
  a.shard_unit = draw.any<config::ShardUnit>();
  a.head_parallel = draw.between(1, 4);
  a.inner_ring = draw.between(1, 4);
  a.block = draw.of(std::vector<std::int64_t>{4, 16, 128});
  a.tolerance = draw.of(std::vector<double>{0.02, 0.3});
  a.bound = draw.any<config::Bound>();
  a.priority = draw.any<config::Priority>();
  a.split_keys = draw.between(0, 1) == 0;
  a.inputs = config::Inputs(draw.between(0, 2) == 0);
  a.gather = draw.any<config::Gather>();
  a.overlap = draw.of(std::vector{config::Overlap::none, config::Overlap::ping_pong});
}

/// Any experiment, whether config takes it or not.
inline config::Experiment draw_experiment(Draw& draw, int ranks, config::PlacementKind placement) {
  config::Experiment e = tiny_experiment();
  e.attention.placement = placement;
  const bool serves =
      placement == config::PlacementKind::cad || placement == config::PlacementKind::colocated;
  if (serves && ranks > 1 && draw.between(0, 1) == 0) {
    e.attention.servers = draw.between(1, std::min(3, ranks - 1));
    e.attention.mixed = draw.between(0, 1) == 0;
  }
  draw_axes(draw, ranks - e.attention.servers, e.parallel);
  if (e.parallel.pipeline > 1) {
    using config::PipelineSchedule;
    e.parallel.schedule = draw.of(std::vector<PipelineSchedule>{
        PipelineSchedule::automatic, PipelineSchedule::automatic, PipelineSchedule::one_f_one_b,
        PipelineSchedule::interleaved, PipelineSchedule::phase_aligned});
    if (e.parallel.schedule == PipelineSchedule::interleaved)
      e.parallel.chunks = draw.between(1, 2);
  }
  e.parallel.shard = draw.of(std::vector{config::Shard::none, config::Shard::optimizer});
  e.run.recompute = draw.any<config::Recompute>();
  e.run.transport = draw.of(std::vector<config::Transport>{
      config::Transport::automatic, config::Transport::nccl, config::Transport::staged});
  draw_attention(draw, e);
  draw_model(draw, e);
  draw_batch(draw, e);
  // Balanced steps hold other documents where a replica is slow, so no other layout has the same.
  if (draw.between(0, 3) == 0 && e.batch.packing != config::Packing::balanced) {
    e.attention.capacity = {{static_cast<double>(draw.between(0, ranks - 1)),
                             draw.of(std::vector<double>{1, 20, 50, 300})}};
  }
  if (draw.between(0, 2) == 0) {
    e.run.offload = config::Offload::activations;
    if (e.parallel.pipeline == 1) e.model.layers += 3;  // fewer stay where they are
  }
  return e;
}

/// An experiment that config takes, on exactly `ranks` ranks.
inline config::Experiment random_experiment(Draw& draw, int ranks,
                                            config::PlacementKind placement) {
  for (int attempt = 0; attempt < 10000; ++attempt) {
    const config::Experiment drawn = draw_experiment(draw, ranks, placement);
    try {
      return config::parse_experiment(config::to_yaml(drawn), "random", {});
    } catch (const Error& error) {
      if (error.code() != ExitCode::usage) throw;
    }
  }
  fail(ExitCode::usage, "no layout of {} ranks was taken", ranks);
}

/// The same training on one rank.
inline config::Experiment on_one_rank(config::Experiment e) {
  e.parallel = {};
  config::Attention attention;  // what is computed stays, not where
  attention.kind = e.attention.kind;
  attention.layers = e.attention.layers;
  attention.window = e.attention.window;
  attention.sinks = e.attention.sinks;
  attention.prefix = e.attention.prefix;
  attention.chunk = e.attention.chunk;
  attention.local = e.attention.local;
  attention.cap = e.attention.cap;
  attention.sparse = e.attention.sparse;
  attention.placement = config::PlacementKind::colocated;
  e.attention = attention;
  e.run.recompute = config::Recompute::none;
  return e;
}

}  // namespace cadenza::exec::testing
