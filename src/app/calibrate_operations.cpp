// SPDX-License-Identifier: Apache-2.0
// Everything but attention: matrix products, whole operations, copies and links.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "cadenza/simulate/costs.hpp"
#include "cadenza/simulate/operation_work.hpp"
#include "cadenza/simulate/product_time.hpp"
#include "calibration.hpp"
#include "measure_links.hpp"
#include "measure_products.hpp"
#include "measure_steps.hpp"
#include "timing.hpp"

namespace cadenza::app {
namespace {

using program::Operation;
using program::Pass;
using program::Step;
using simulate::Product;

constexpr std::int64_t kDocument = 256;  // tokens: attention is not what is measured
constexpr int kSteps = 4;

Step make_step(Operation operation, Pass pass) {
  Step step;
  step.operation = operation;
  step.pass = pass;
  return step;
}

const std::array<Step, 9> kOperations = {make_step(Operation::embed, Pass::forward),
                                         make_step(Operation::attention_inputs, Pass::forward),
                                         make_step(Operation::attention_outputs, Pass::forward),
                                         make_step(Operation::loss, Pass::backward),
                                         make_step(Operation::attention_outputs, Pass::backward),
                                         make_step(Operation::begin_attention, Pass::backward),
                                         make_step(Operation::attention_inputs, Pass::backward),
                                         make_step(Operation::embed_gradient, Pass::backward),
                                         make_step(Operation::optimize, Pass::backward)};

trace::Phase phase_of(const Step& step) {
  if (step.operation == Operation::optimize) return trace::Phase::optimizer;
  return step.pass == Pass::forward ? trace::Phase::forward : trace::Phase::backward;
}

/// Rows over which products are measured.
std::vector<std::int64_t> row_counts(std::int64_t rows) {
  std::vector<std::int64_t> counts;
  for (std::int64_t count = rows; count >= kDocument; count /= 2) counts.push_back(count);
  if (counts.empty()) counts.push_back(rows);
  return counts;
}

using Shape = std::array<double, 3>;  // rows, columns, depth

/// All products of the model's operations over `rows` tokens, each shape once.
std::map<Shape, Product> products_of(const config::Experiment& alone, std::int64_t rows) {
  const simulate::OperationShapes shapes(alone, program::Layout(alone));
  std::map<Shape, Product> products;
  for (const Step& step : kOperations) {
    for (const Product& product : shapes.work(step, 0, rows).products) {
      products.emplace(Shape{product.rows, product.columns, product.depth}, product);
    }
  }
  return products;
}

}  // namespace

config::Experiment one_rank(const config::Experiment& experiment, std::int64_t rows) {
  config::Experiment alone = experiment;
  alone.model.layers = std::min<std::int64_t>(2, experiment.model.layers);
  alone.data = {};
  alone.data.source = config::Source::synthetic;
  alone.data.max_document = rows;
  alone.data.lengths.distribution = config::Distribution::constant;
  alone.data.lengths.median = static_cast<double>(std::min(kDocument, rows));
  alone.batch = {};
  alone.batch.tokens = alone.batch.microbatch = rows;
  alone.parallel = {};
  alone.attention = {};
  alone.attention.placement = config::PlacementKind::colocated;
  alone.cluster = {};
  return alone;
}

template <typename Real>
void Calibration<Real>::measure_products() {
  std::vector<config::Row<4>>& table = machine_.products.table;
  for (const std::int64_t rows : row_counts(rows_)) {
    for (const auto& [shape, product] : products_of(one_rank(experiment_, rows), rows)) {
      const double rate = product.flops() / product_seconds<Real>(world_, product);
      table.push_back({shape[0], shape[1], shape[2], rounded(rate)});
    }
  }
  std::ranges::sort(table);
  table.erase(std::unique(table.begin(), table.end(),
                          [](const auto& a, const auto& b) {
                            return std::equal(a.begin(), a.begin() + 3, b.begin());
                          }),
              table.end());
  simulate::ProductTime times(machine_.products);
  const config::Experiment alone = one_rank(experiment_, rows_);
  for (const auto& [shape, product] :
       products_of(alone, std::max<std::int64_t>(1, rows_ * 3 / 8))) {
    product_error_.add(times.seconds(product), product_seconds<Real>(world_, product));
  }
  say(fmt::format("products: {} shapes; {}", table.size(), product_error_.text()));
}

template <typename Real>
std::vector<OperationSample> Calibration<Real>::operations(std::int64_t rows) {
  const auto self = comm::make_self();
  const std::vector<OperationTime> events =
      run_steps<Real>(world_, *self, one_rank(experiment_, rows), kSteps);
  std::vector<OperationSample> samples;
  for (const Step& step : kOperations) {
    const std::string name(program::name(step.operation));
    samples.push_back({step, rows, median_seconds(world_, events, name, phase_of(step))});
  }
  return samples;
}

template <typename Real>
void Calibration<Real>::measure_operations() {
  std::vector<OperationSample> samples;
  for (const std::int64_t rows : {rows_, std::max<std::int64_t>(2, rows_ / 4)}) {
    for (const OperationSample& sample : operations(rows)) samples.push_back(sample);
  }
  fit_element_wise(one_rank(experiment_, rows_), samples, machine_);
  // What streams through memory and does little else.
  machine_.element_wise.bytes_per_second = machine_.element_wise.attention_delta.backward;
  check_operations(std::max<std::int64_t>(2, rows_ / 2));
}

template <typename Real>
void Calibration<Real>::check_operations(std::int64_t rows) {
  const config::Experiment alone = one_rank(experiment_, rows);
  const simulate::Costs costs(machine_, alone, program::Layout(alone));
  for (const OperationSample& sample : operations(rows)) {
    const double predicted = costs.compute(sample.step, 0, rows);
    operation_error_.add(predicted, sample.seconds);
    say(fmt::format("operations: {} {}: {:.2f} ms, predicted {:.2f} ms",
                    program::name(sample.step.operation),
                    sample.step.pass == Pass::forward ? "forward" : "backward",
                    1e3 * sample.seconds, 1e3 * predicted));
  }
  say("operations: " + operation_error_.text());
}

template <typename Real>
void Calibration<Real>::measure_messages() {
  machine_.links.inside = measure_link(world_);
  config::Link& link = machine_.links.inside;
  link = {rounded(link.latency_seconds), rounded(link.bytes_per_second)};
  config::Experiment shared = one_rank(experiment_, rows_);
  shared.parallel.context = world_.size();
  shared.attention.placement = config::PlacementKind::all_gather;
  const std::vector<OperationTime> events = run_steps<Real>(world_, world_, shared, kSteps);
  machine_.element_wise.copies = {rounded(bytes_per_second(world_, events, "pack")),
                                  rounded(bytes_per_second(world_, events, "unpack"))};
  say(fmt::format("links: {:.1f} us, {:.2f} GB/s; copies {:.2f} and {:.2f} GB/s",
                  1e6 * link.latency_seconds, 1e-9 * link.bytes_per_second,
                  1e-9 * machine_.element_wise.copies.forward,
                  1e-9 * machine_.element_wise.copies.backward));
}

#define CADENZA_INSTANTIATE(Real)                                                         \
  template void Calibration<Real>::measure_products();                                    \
  template std::vector<OperationSample> Calibration<Real>::operations(std::int64_t rows); \
  template void Calibration<Real>::measure_operations();                                  \
  template void Calibration<Real>::check_operations(std::int64_t rows);                   \
  template void Calibration<Real>::measure_messages();
CADENZA_INSTANTIATE(bfloat16)
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::app
