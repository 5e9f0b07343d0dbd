// SPDX-License-Identifier: Apache-2.0
#include "cadenza/program/operation_time.hpp"

#include <algorithm>
#include <numeric>

#include "cadenza/program/element_wise_rate.hpp"

namespace cadenza::program {
namespace {

/// A rank's seconds of the rest of a layer, by token.
double seconds_of_token(const config::Experiment& e, const Layout& layout, Pass pass,
                        const cost::Rates& rates) {
  const OperationShapes shapes(e, layout);
  const std::int64_t rows = std::max<std::int64_t>(1, e.batch.microbatch / e.parallel.context);
  std::vector<Rank> tensor_group(static_cast<std::size_t>(layout.tensor()));
  std::iota(tensor_group.begin(), tensor_group.end(), 0);
  double seconds = 0;
  for (const Step& step : layer_steps(e)) {
    if (step.pass != pass) continue;
    seconds += seconds_of(step, shapes.work(step, 0, rows), rates);
    for (const TensorCollective& collective : shapes.collectives(step, 0, rows)) {
      seconds +=
          rates.collective(collective.what, static_cast<double>(collective.bytes), tensor_group);
    }
  }
  return seconds / static_cast<double>(rows);
}

}  // namespace

double seconds_of(const Step& step, const OperationWork& work, const cost::Rates& rates) {
  double seconds = work.bytes / element_wise_rate(rates.machine().element_wise, step);
  for (const Product& product : work.products) seconds += rates.product_seconds(product);
  return seconds;
}

std::vector<Step> layer_steps(const config::Experiment& e) {
  const auto step = [](Operation operation, Pass pass, bool recompute = false) {
    Step s;
    s.operation = operation;
    s.pass = pass;
    s.recompute = recompute;
    s.tick = 0;
    return s;
  };
  std::vector<Step> steps = {step(Operation::attention_inputs, Pass::forward),
                             step(Operation::attention_outputs, Pass::forward),
                             step(Operation::attention_outputs, Pass::backward),
                             step(Operation::begin_attention, Pass::backward),
                             step(Operation::attention_inputs, Pass::backward)};
  using config::Recompute;
  if (e.run.recompute == Recompute::attention || e.run.recompute == Recompute::layer) {
    steps.push_back(step(Operation::attention_inputs, Pass::forward, true));
  }
  if (e.run.recompute == Recompute::layer) {
    steps.push_back(step(Operation::attention_outputs, Pass::forward, true));
  }
  return steps;
}

cost::Pool planning_pool(const config::Experiment& experiment, const config::Machine& machine,
                         const Layout& layout) {
  cost::Pool pool{cost::Rates(machine, experiment.cluster.even(), experiment.model.head_dim()),
                  layout.members(0)};
  pool.tensor = layout.tensor();
  pool.forward_seconds = seconds_of_token(experiment, layout, Pass::forward, pool.rates);
  pool.backward_seconds = seconds_of_token(experiment, layout, Pass::backward, pool.rates);
  return pool;
}

}  // namespace cadenza::program
