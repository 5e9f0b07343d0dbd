// SPDX-License-Identifier: Apache-2.0
#include "cadenza/simulate/least_time.hpp"

#include <algorithm>
#include <numeric>

#include "dense.hpp"

namespace cadenza::simulate {
namespace {

using config::Recompute;
using program::Operation;
using program::Pass;
using program::Step;

/// Kernel time of one head of all documents of a microbatch.
double head_seconds(const data::Microbatch& microbatch, Pass pass, const Costs& costs) {
  std::vector<plan::PlacedTask> tasks;
  for (const data::BatchDocument& document : microbatch.documents) {
    const Range tokens{0, document.length()};
    tasks.push_back({0, {0, tokens, tokens, {0, 1}}, 0.0});
  }
  std::vector<const plan::PlacedTask*> all;
  for (const plan::PlacedTask& task : tasks) all.push_back(&task);
  return all.empty() ? 0.0 : costs.attend(all, pass);
}

bool attention_again(const config::Experiment& e) {
  return e.run.recompute == Recompute::attention || e.run.recompute == Recompute::layer;
}

/// Operations of the dense part of a layer, both passes.
std::vector<Step> layer_steps(const config::Experiment& e) {
  const auto step = [](Operation operation, Pass pass, bool again = false) {
    Step s;
    s.operation = operation;
    s.pass = pass;
    s.again = again;
    s.tick = 0;
    return s;
  };
  std::vector<Step> steps = {step(Operation::attention_inputs, Pass::forward),
                             step(Operation::attention_outputs, Pass::forward),
                             step(Operation::attention_outputs, Pass::backward),
                             step(Operation::begin_attention, Pass::backward),
                             step(Operation::attention_inputs, Pass::backward)};
  if (attention_again(e)) {
    steps.push_back(step(Operation::attention_inputs, Pass::forward, true));
  }
  if (e.run.recompute == Recompute::layer) {
    steps.push_back(step(Operation::attention_outputs, Pass::forward, true));
  }
  return steps;
}

/// Of a microbatch on a rank of any stage.
double stage_seconds(const config::Experiment& e, Dense& dense, std::int64_t rows) {
  double seconds = 0;
  for (const Step& step : layer_steps(e)) {
    const DenseTime& time = dense.time(step, 0, rows);
    seconds += time.compute + time.collective_seconds();
  }
  return seconds * static_cast<double>(e.model.layers / e.parallel.pipeline);
}

/// Of a microbatch on the last stage beside its layers.
double loss_seconds(Dense& dense, std::int64_t rows) {
  Step loss;
  loss.operation = Operation::loss;
  loss.pass = Pass::backward;
  loss.tick = 0;
  const DenseTime& time = dense.time(loss, 0, rows);
  return time.compute + time.collective_seconds();
}

double update_seconds(const config::Experiment& e, Dense& dense) {
  Step optimize;
  optimize.operation = Operation::optimize;
  double seconds = dense.time(optimize, 0, 0).compute + dense.gradient_sum(0, 0).seconds;
  if (e.parallel.shard == config::Shard::optimizer) seconds += dense.gather_parameters(0);
  return seconds;
}

}  // namespace

LeastTime::LeastTime(const data::Batch& batch, const Costs& costs)
    : machine_(costs.machine()), tokens_(batch.tokens()) {
  for (const data::Microbatch& microbatch : batch.microbatches) {
    microbatches_.push_back({head_seconds(microbatch, Pass::forward, costs),
                             head_seconds(microbatch, Pass::backward, costs)});
  }
}

double LeastTime::seconds(const config::Experiment& e) const {
  const program::StepShape outline(e);
  const Costs costs(machine_, e, outline.layout);
  Dense dense(e, outline, costs);
  const int microbatches = outline.pipeline.microbatches;
  const std::int64_t rows = tokens_ / (microbatches * e.parallel.data * e.parallel.context);
  const double layers = stage_seconds(e, dense, rows);
  const double fill = (static_cast<double>(e.parallel.pipeline) - 1.0) / outline.pipeline.chunks;
  const double dense_seconds = microbatches * (layers + loss_seconds(dense, rows));
  const double update = update_seconds(e, dense);
  const double attention = attention_seconds(e);
  if (e.attention.overlap == config::Overlap::none) {
    return dense_seconds + fill * layers + attention + update;
  }
  // In ping-pong other ranks may compute a half's attention while this one has the other half.
  const double served = e.attention.servers == 0 ? attention : 0.0;
  return dense_seconds + std::max(fill * layers, served) + update;
}

/// Of the rank with most of it, in all layers of its stage.
double LeastTime::attention_seconds(const config::Experiment& e) const {
  const config::Parallel& p = e.parallel;
  std::vector<double> of_data(static_cast<std::size_t>(p.data), 0.0);
  for (std::size_t i = 0; i < microbatches_.size(); ++i) {
    const Attention& a = microbatches_[i];
    of_data[i % of_data.size()] += (attention_again(e) ? 2 : 1) * a.forward + a.backward;
  }
  const double heads = static_cast<double>(e.model.heads) / static_cast<double>(p.tensor);
  const double layers = static_cast<double>(e.model.layers);
  const double group = static_cast<double>(p.pipeline * p.context);
  const bool stays = e.attention.placement != config::PlacementKind::cad;
  if (stays && e.attention.servers == 0) {
    return *std::ranges::max_element(of_data) * heads * layers / group;
  }
  const double all = std::accumulate(of_data.begin(), of_data.end(), 0.0) * heads * layers;
  const double servers = static_cast<double>(e.attention.servers) / static_cast<double>(p.tensor);
  return all / (group * static_cast<double>(p.data) + servers);
}

}  // namespace cadenza::simulate
