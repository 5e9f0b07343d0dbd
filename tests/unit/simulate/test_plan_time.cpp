// SPDX-License-Identifier: Apache-2.0
#include "cadenza/simulate/plan_time.hpp"

#include <gtest/gtest.h>

#include "cadenza/plan/placement.hpp"
#include "cadenza/program/step_plan.hpp"

namespace cadenza::simulate {
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

// The machine without a file and the cost model of plans are one basis.
TEST(PlanTime, NominalRatesAreThoseOfTheCostModel) {
  const config::Experiment e = experiment();
  const plan::Plan plan = plan_of(e);
  const program::Layout layout(e);
  const plan::Prediction found = predict(plan, layout, Costs({}, e, layout));
  const plan::Prediction nominal = plan::predict(plan, {});
  EXPECT_GT(found.predicted_seconds, found.lower_bound_seconds);
  EXPECT_NEAR(found.predicted_seconds, nominal.predicted_seconds, 1e-9 * nominal.predicted_seconds);
  EXPECT_NEAR(found.lower_bound_seconds, nominal.lower_bound_seconds,
              1e-9 * nominal.lower_bound_seconds);
}

TEST(PlanTime, AFasterMachineTakesLess) {
  const config::Experiment e = experiment();
  const plan::Plan plan = plan_of(e);
  const program::Layout layout(e);
  config::Machine fast;
  fast.attention.flops_per_second *= 1000;
  fast.links.inside.bytes_per_second *= 1000;
  const plan::Prediction slow = predict(plan, layout, Costs({}, e, layout));
  const plan::Prediction found = predict(plan, layout, Costs(fast, e, layout));
  EXPECT_NEAR(1000 * found.predicted_seconds, slow.predicted_seconds,
              1e-6 * slow.predicted_seconds);
}

}  // namespace
}  // namespace cadenza::simulate
