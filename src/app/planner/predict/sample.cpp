// SPDX-License-Identifier: Apache-2.0
#include "app/planner/predict/sample.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "app/planner/predict/forecast.hpp"
#include "cadenza/base/at.hpp"
#include "cadenza/simulate/least_time.hpp"
#include "cadenza/simulate/simulator.hpp"

namespace cadenza::app {
namespace {

using Numbers = std::vector<std::int64_t>;

/// Attention of microbatch `round` of data-parallel rank `data`.
class Grid {
 public:
  Grid(std::span<const double> attention, std::int64_t data) : attention_(attention), data_(data) {}

  std::int64_t rounds() const { return static_cast<std::int64_t>(attention_.size()) / data_; }
  double seconds(std::int64_t round, std::int64_t data) const {
    return attention_[at(round * data_ + data)];
  }
  double of_data(std::int64_t data) const {
    double sum = 0;
    for (std::int64_t round = 0; round < rounds(); ++round) sum += seconds(round, data);
    return sum;
  }
  /// The mean of some data-parallel ranks.
  double of_round(std::int64_t round, const Numbers& data) const {
    double sum = 0;
    for (const std::int64_t d : data) sum += seconds(round, d);
    return sum / static_cast<double>(data.size());
  }

 private:
  std::span<const double> attention_;
  std::int64_t data_;
};

/// Numbers below `count`, by descending cost.
template <class Cost>
Numbers by_cost(std::int64_t count, Cost cost) {
  Numbers all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  std::ranges::stable_sort(all, [&](auto a, auto b) { return cost(a) > cost(b); });
  return all;
}

/// One of each of `count` equal parts of a sorted list, so that their costs are together as near as
/// may be to what the parts cost in the mean: what one is off by, the next makes up for. Ascending.
/// @param mean  of a number: what its cost stands for
/// @param with_most  the first of the list is one of them
template <class Cost, class Mean>
Numbers representatives(const Numbers& all, std::int64_t count, Cost cost, Mean mean,
                        bool with_most = false) {
  Numbers some;
  const auto size = static_cast<std::int64_t>(all.size());
  double owed = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::span part(all.begin() + i * size / count, all.begin() + (i + 1) * size / count);
    double sum = 0;
    for (const std::int64_t one : part) sum += mean(one);
    owed += sum / static_cast<double>(part.size());
    const auto nearest = std::ranges::min_element(
        part, {}, [&](std::int64_t one) { return std::abs(cost(one) - owed); });
    some.push_back(i == 0 && with_most ? all.front() : *nearest);
    owed -= cost(some.back());
  }
  std::ranges::sort(some);
  return some;
}

/// The least divisor of `whole` that is no less than `least`.
std::int64_t divisor_from(std::int64_t whole, std::int64_t least) {
  std::int64_t part = std::clamp<std::int64_t>(least, 1, whole);
  while (whole % part != 0) ++part;
  return part;
}

bool pools_data(const config::Experiment& e) {
  return config::disaggregates(e.attention.placement) || e.attention.servers > 0;
}

/// All of them where ranks differ by number. Of those that exchange only gradients few say as much
/// as many. Dedicated servers are divided as the data ranks are, in whole tensor groups.
std::int64_t data_ranks(const config::Experiment& e, std::int64_t ranks) {
  constexpr std::int64_t kFew = 8;
  if (e.cluster.varies() || !e.attention.capacity.empty()) return e.parallel.data;
  if (!pools_data(e)) ranks = std::min(ranks, kFew);
  const std::int64_t each = e.parallel.context * (pools_data(e) ? 1 : e.parallel.tensor);
  std::int64_t some = divisor_from(e.parallel.data, (ranks + each - 1) / each);
  while (e.attention.servers * some % (e.parallel.data * e.parallel.tensor) != 0) {
    some = divisor_from(e.parallel.data, some + 1);
  }
  return some;
}

Numbers sample_data(const config::Experiment& e, const Grid& grid, std::int64_t count) {
  const auto cost = [&](std::int64_t data) { return grid.of_data(data); };
  Numbers all = by_cost(e.parallel.data, cost);
  // A pool waits for the rank whose keys all others need: that of the longest document.
  if (pools_data(e)) return representatives(all, count, cost, cost, count > 1);
  all.resize(static_cast<std::size_t>(count));
  std::ranges::sort(all);
  return all;
}

/// A pipeline needs twice its stages to be filled, and some schedules a multiple of them.
Numbers sample_rounds(const config::Experiment& e, const Grid& grid, const Numbers& data,
                      std::int64_t least) {
  const std::int64_t stages = e.parallel.pipeline;
  const std::int64_t unit = grid.rounds() % stages == 0 ? stages : 1;
  const std::int64_t wanted = std::max(least, stages == 1 ? 1 : 2 * stages);
  const std::int64_t count = unit * divisor_from(grid.rounds() / unit, wanted / unit);
  Numbers stand_for = data;
  if (pools_data(e)) {
    stand_for.resize(static_cast<std::size_t>(e.parallel.data));
    std::iota(stand_for.begin(), stand_for.end(), 0);
  }
  const auto mean = [&](std::int64_t round) { return grid.of_round(round, stand_for); };
  return representatives(
      by_cost(grid.rounds(), mean), count,
      [&](std::int64_t round) { return grid.of_round(round, data); }, mean);
}

config::Experiment with_layers(const config::Experiment& given, std::int64_t of_stage) {
  config::Experiment e = given;
  e.parallel.schedule = given.pipeline_schedule();  // which may be of unequal stages
  e.model.layers = of_stage * e.parallel.pipeline;
  e.parallel.stages.clear();
  return e;
}

/// What the sample takes beyond its bound.
struct Excess {
  double seconds = 0;
  double operations = 0;
};

Excess excess(const config::Experiment& e, const Sample& sample,
              std::span<const program::TickPlans> tick_plans, const config::Machine& machine) {
  const program::StepShape step_shape(e);
  const simulate::Costs costs(machine, e, step_shape.layout);
  const auto programs = make_programs(step_shape, tick_plans,
                                      !simulate::tensor_ranks_alike(e, step_shape.layout, costs));
  const simulate::Result result =
      simulate::simulate(e, step_shape, programs, tick_plans, costs, {}, sample.batch.step);
  return {result.seconds - simulate::LeastTime(sample.batch, e, machine).seconds(e),
          static_cast<double>(result.operations)};
}

/// In all layers of the stage with most: two samples, of even stages, say what one more takes; with
/// offloading, one more beyond those that stay.
Excess excess_of_layers(const Sample& sample, std::span<const program::TickPlans> tick_plans,
                        const config::Machine& machine) {
  const config::Experiment& e = sample.experiment;
  const program::StepShape step_shape(e);
  const std::int64_t least = step_shape.offloads ? step_shape.slots(0) + 1 : 2, most = least + 2;
  const std::int64_t layers = step_shape.most_layers;
  const std::int64_t unit = e.parallel.chunks;
  if (layers <= most * unit) return excess(e, sample, tick_plans, machine);
  const Excess few = excess(with_layers(e, least * unit), sample, tick_plans, machine);
  const Excess more = excess(with_layers(e, most * unit), sample, tick_plans, machine);
  const double times =
      static_cast<double>(layers - least * unit) / static_cast<double>((most - least) * unit);
  return {few.seconds + times * (more.seconds - few.seconds),
          few.operations + times * (more.operations - few.operations)};
}

}  // namespace

Sample sample_of(const config::Experiment& experiment, const data::Batch& batch,
                 std::span<const double> attention, SampleSize size) {
  const std::int64_t whole = experiment.parallel.data;
  const std::int64_t stages = experiment.parallel.pipeline;
  const Grid grid(attention, whole);
  const Numbers data = sample_data(experiment, grid, data_ranks(experiment, size.ranks));
  const Numbers rounds = sample_rounds(experiment, grid, data, size.microbatches);
  Sample sample{experiment, {batch.step, {}}, 1, 1, ""};
  for (const std::int64_t round : rounds) {
    for (const std::int64_t d : data) {
      sample.batch.microbatches.push_back(batch.microbatches[at(round * whole + d)]);
    }
  }
  config::Experiment& e = sample.experiment;
  e.parallel.data = std::ssize(data);
  e.attention.servers = experiment.attention.servers * e.parallel.data / whole;
  e.batch.tokens = e.batch.microbatch * static_cast<std::int64_t>(sample.batch.microbatches.size());
  const auto turns = [&](auto m) {
    return static_cast<double>(m) + static_cast<double>(stages) - 1;
  };
  sample.turns = turns(grid.rounds()) / turns(rounds.size());
  sample.parts = static_cast<double>(batch.microbatches.size()) /
                 static_cast<double>(sample.batch.microbatches.size());
  sample.text = fmt::format("{} of {} data ranks, {} of {} microbatches", data.size(), whole,
                            rounds.size(), grid.rounds());
  return sample;
}

Estimate estimate(const Sample& sample, std::span<const program::TickPlans> tick_plans,
                  double bound, const config::Machine& machine) {
  const Excess beyond = excess_of_layers(sample, tick_plans, machine);
  return {bound + std::max(0.0, beyond.seconds) * sample.turns, beyond.operations * sample.parts};
}

exec::MemoryEstimate memory_of_plans(const Sample& sample,
                                     std::span<const program::TickPlans> tick_plans) {
  const config::Experiment& e = sample.experiment;
  const program::StepShape step_shape(e);
  const program::Layout& layout = step_shape.layout;
  std::vector<program::Program> ranks;
  for (Rank rank = 0; rank < layout.trainers(); rank += layout.tensor()) {
    const int buffers = program::buffers_of_stage(step_shape, layout.coordinates(rank).pipeline);
    ranks.push_back({rank, buffers, {}});
  }
  exec::MemoryEstimate most = std::ranges::max(
      exec::estimate_memory(e, step_shape, ranks, tick_plans), {}, &exec::MemoryEstimate::total);
  most -= exec::least_memory(e);
  // A share of the moments depends on the number of ranks, and all else of them not on plans.
  most.parameters = most.gradients = most.optimizer = 0;
  most.activations = std::max<std::int64_t>(0, most.activations);
  return most;
}

}  // namespace cadenza::app
