// SPDX-License-Identifier: Apache-2.0
#include "cadenza/plan/predict.hpp"

#include <gtest/gtest.h>

#include "cadenza/plan/placement.hpp"
#include "cadenza/program/operation_work.hpp"
#include "cadenza/program/step_plan.hpp"

namespace cadenza::program::test_operation_time {
namespace {

config::Experiment experiment() {
  config::Experiment e;
  e.model.layers = 2;
  e.model.d_model = 256;
  e.model.heads = 4;
  e.model.kv_heads = 2;
  e.model.ffn = 512;
  e.model.vocab = 512;
  e.data.source = config::Source::synthetic;
  e.data.max_document = 2048;
  e.data.lengths.median = 600;
  e.batch.tokens = 8192;
  e.batch.microbatch = 2048;
  e.parallel.data = 4;
  return e;
}

plan::Plan plan_of(const config::Experiment& e) {
  const auto corpus = data::open_corpus(e.data, e.model.vocab, e.seed);
  return program::plan_ticks(e, data::Packer(*corpus, e).batch(0)).front().forward;
}

TEST(PlanTime, AFasterMachineTakesLess) {
  const config::Experiment e = experiment();
  const plan::Plan plan = plan_of(e);
  const program::Layout layout(e);
  config::Machine fast;
  fast.attention.flops_per_second *= 1000;
  fast.links.inside.bytes_per_second *= 1000;
  const plan::Prediction slow = plan::predict(plan, program::planning_pool(e, {}, layout));
  const plan::Prediction found = plan::predict(plan, program::planning_pool(e, fast, layout));
  EXPECT_NEAR(1000 * found.predicted_seconds, slow.predicted_seconds,
              1e-6 * slow.predicted_seconds);
}

}  // namespace
}  // namespace cadenza::program::test_operation_time
