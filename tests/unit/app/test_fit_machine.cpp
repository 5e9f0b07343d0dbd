// SPDX-License-Identifier: Apache-2.0
// From samples of a made-up machine back to its numbers.
#include "app/calibrate/fit_machine.hpp"

#include <gmock/gmock.h>

#include "cadenza/cost/flops.hpp"
#include "cadenza/simulate/costs.hpp"
#include "unit/tiny_model.hpp"

namespace cadenza::app::test_fit_machine {
namespace {

using program::Operation;
using program::Pass;

config::Experiment experiment() {
  config::Experiment e;
  e.model = tiny_model();
  return e;
}

TEST(FitTileOverhead, FindsTheCostOfATileOfQueries) {
  config::AttentionTimes times;
  times.tile = 128;
  times.launch_seconds = 1e-5;
  const auto add = [](double queries, double keys, double unit, auto& table) {
    const auto end = static_cast<std::int64_t>(keys);
    const Task last{0, {end - static_cast<std::int64_t>(queries), end}, {0, end}, {0, 1}};
    table.push_back({queries, keys, 1e-5 + unit * cost::tile_weight(last, 128, 1.25)});
  };
  for (const double keys : {128.0, 512.0, 2048.0}) {
    for (const double queries : {128.0, 512.0, 2048.0}) {
      if (queries > keys) continue;
      add(queries, keys, 1e-5, times.forward);
      add(queries, keys, 2.5e-5, times.backward);
    }
  }
  fit_tile_overhead(times);
  EXPECT_DOUBLE_EQ(times.tile_overhead, 1.25);
}

TEST(FitElementWise, FindsTheRatesBesideTheProducts) {
  const config::Experiment e = experiment();
  config::Machine truth;
  truth.element_wise.attention_inputs = {1e9, 2e9};
  truth.element_wise.attention_outputs = {3e9, 4e9};
  truth.element_wise.loss = 5e9;
  truth.element_wise.optimizer = 6e9;
  const program::Layout layout(e);
  const simulate::Costs costs(truth, e, layout);
  std::vector<OperationSample> samples;
  for (const std::int64_t rows : {512, 2048}) {
    for (const auto& [operation, pass] : {std::pair(Operation::attention_inputs, Pass::forward),
                                          std::pair(Operation::attention_inputs, Pass::backward),
                                          std::pair(Operation::attention_outputs, Pass::forward),
                                          std::pair(Operation::attention_outputs, Pass::backward),
                                          std::pair(Operation::loss, Pass::backward),
                                          std::pair(Operation::optimize, Pass::backward),
                                          std::pair(Operation::load, Pass::forward)}) {
      program::Instruction instruction;
      instruction.operation = operation;
      instruction.pass = pass;
      samples.push_back({instruction, rows, costs.compute(instruction, 0, rows)});
    }
  }
  config::Machine fitted;
  fit_element_wise(e, samples, fitted);
  const auto near = [](double found, double expected) {
    EXPECT_NEAR(found / expected, 1, 1e-3) << expected;
  };
  near(fitted.element_wise.attention_inputs.forward, 1e9);
  near(fitted.element_wise.attention_inputs.backward, 2e9);
  near(fitted.element_wise.attention_outputs.forward, 3e9);
  near(fitted.element_wise.attention_outputs.backward, 4e9);
  near(fitted.element_wise.loss, 5e9);
  near(fitted.element_wise.optimizer, 6e9);
  EXPECT_EQ(fitted.element_wise.embedding.forward, 0);  // not sampled
}

TEST(FitElementWise, TakesNoTimeWhereProductsAloneAreLonger) {
  const config::Experiment e = experiment();
  program::Instruction instruction;
  instruction.operation = Operation::attention_inputs;
  config::Machine machine;
  fit_element_wise(e, {{instruction, 1024, 1e-9}}, machine);
  EXPECT_EQ(machine.element_wise.attention_inputs.forward, 1e15);
}

TEST(FitError, IsSaidInWords) {
  FitError error;
  EXPECT_EQ(error.text(), "not checked");
  error.add("a", 1.1, 1.0);
  error.add("b", 0.98, 1.0);
  error.add("c", 1.0, 1.0);
  EXPECT_EQ(error.text(), "2.0 % median, 10.0 % at most");
  EXPECT_TRUE(error.far().empty());
}

TEST(FitError, NamesPredictionsThatAreNoUse) {
  FitError error;
  error.add("attention", 5.14, 1.0);
  error.add("product", 0.6, 1.0);
  error.add("too short to matter", 3e-6, 1e-6);
  EXPECT_THAT(error.far(), ::testing::ElementsAre("attention (+414 %)", "product (-40 %)"));
}

TEST(Rounded, HasFourDigits) {
  EXPECT_EQ(rounded(0), 0);
  EXPECT_EQ(rounded(123456789), 123500000);
  EXPECT_EQ(rounded(0.000123449), 0.0001234);
  EXPECT_EQ(rounded(1e15), 1e15);
}

}  // namespace
}  // namespace cadenza::app::test_fit_machine
