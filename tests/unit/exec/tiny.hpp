// SPDX-License-Identifier: Apache-2.0
// A tiny experiment on synthetic documents, and everything an executor of it needs.
#pragma once

#include <gtest/gtest.h>

#include "cadenza/data/batch.hpp"
#include "cadenza/data/corpus.hpp"
#include "cadenza/exec/executor.hpp"
#include "cadenza/exec/memory/estimate.hpp"
#include "cadenza/program/step_plan.hpp"
#include "unit/tiny_model.hpp"

namespace cadenza::exec::testing {

/// 12 microbatches of 256 tokens: any of 1, 2, 3, 4, 6 data-parallel ranks divide them.
inline config::Experiment tiny_experiment() {
  config::Experiment e;
  e.seed = 7;
  e.model = tiny_model();
  e.data.source = config::Source::synthetic;
  e.data.documents = 97;
  e.data.max_document = 256;
  e.data.lengths.min = 1;
  e.data.lengths.median = 60;
  e.batch.tokens = 3072;
  e.batch.microbatch = 256;
  e.attention.placement = config::PlacementKind::cad;
  e.attention.block = 16;
  e.attention.tolerance = 0.02;
  e.optimizer.lr = 3e-3;
  e.optimizer.warmup = 3;
  e.run.steps = 10;
  return e;
}

/// `e` in the type that Real names; in bfloat16 with a head_dim that its kernels take.
template <typename Real>
config::Experiment with_dtype(config::Experiment e) {
  if constexpr (std::is_same_v<Real, bfloat16>) {
    e.model.d_model = 64;
    e.model.own_head_dim = 0;
    e.model.heads = 2;
    e.model.kv_heads = 1;
  }
  e.run.dtype = std::is_same_v<Real, bfloat16> ? config::Dtype::bfloat16
                : std::is_same_v<Real, double> ? config::Dtype::float64
                                               : config::Dtype::float32;
  return e;
}

/// One rank's executor and what it refers to.
template <typename Real>
struct RankState {
  RankState(const config::Experiment& e, comm::Communicator& world)
      : experiment(with_dtype<Real>(e)),
        corpus(data::open_corpus(e.data, e.model.vocab, e.seed)),
        packer(*corpus, experiment),
        recorder(1 << 16),
        tracer(recorder, ledger, true, true),
        executor(experiment, world, *corpus, tracer, ledger),
        rank(world.rank()) {}

  program::StepPlan plan(std::int64_t step) const {
    return program::plan_step(experiment, packer, rank, step);
  }
  StepResult run(std::int64_t step) {
    tracer.begin_step(step);
    return executor.run(plan(step));
  }

  config::Experiment experiment;
  std::unique_ptr<data::Corpus> corpus;
  data::Packer packer;
  MemoryLedger ledger;
  trace::Recorder recorder;
  Tracer tracer;
  Executor<Real> executor;
  Rank rank;
};

/// A step's high-water marks are what was estimated before it.
inline void expect_memory(const MemoryEstimate& estimate, const MemoryLedger& ledger) {
  EXPECT_EQ(estimate.parameters, ledger.peak(MemoryKind::parameters) +
                                     ledger.peak(MemoryKind::gradients) +
                                     ledger.peak(MemoryKind::optimizer));
  EXPECT_EQ(estimate.gradients, ledger.peak(MemoryKind::gradients));
  EXPECT_EQ(estimate.optimizer, ledger.peak(MemoryKind::optimizer));
  EXPECT_EQ(estimate.activations, ledger.peak(MemoryKind::activations));
  EXPECT_EQ(estimate.attention, ledger.peak(MemoryKind::attention));
  EXPECT_EQ(estimate.communication, ledger.peak(MemoryKind::communication));
  EXPECT_EQ(estimate.other, ledger.peak(MemoryKind::other));
}

}  // namespace cadenza::exec::testing
