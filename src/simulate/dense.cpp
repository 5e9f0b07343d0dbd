// SPDX-License-Identifier: Apache-2.0
#include "simulate/dense.hpp"

#include "cadenza/cost/flops.hpp"
#include "cadenza/program/operation_work.hpp"

namespace cadenza::simulate {

Dense::Dense(const config::Experiment& experiment, const program::StepShape& step_shape,
             const Costs& costs)
    : e_(experiment),
      step_shape_(step_shape),
      layout_(step_shape.layout),
      costs_(costs),
      shapes_(experiment, layout_),
      bytes_(config::element_bytes(experiment.run.dtype)) {}

double DenseTime::collective_seconds() const {
  double seconds = 0;
  for (const TimedCollective& collective : collectives) seconds += collective.seconds;
  return seconds;
}

const DenseTime& Dense::time(const program::Instruction& instruction, Rank rank,
                             std::int64_t rows) {
  if (instruction.tick < 0) {  // the size of the weights depends on the rank
    const double compute = costs_.compute(instruction, rank, rows);
    optimizer_ = {compute, 0, tensor_collectives(instruction, rank, rows)};
    return optimizer_;
  }
  const int group = rank / layout_.tensor();
  const auto key =
      std::tuple(group, instruction.operation, instruction.pass, instruction.recompute, rows);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  const double compute = costs_.compute(instruction, rank, rows);
  const DenseTime time{compute, shapes_.work(instruction, rank, rows).flops(),
                       tensor_collectives(instruction, rank, rows)};
  return known_.emplace(key, time).first->second;
}

std::vector<TimedCollective> Dense::tensor_collectives(const program::Instruction& instruction,
                                                       Rank rank, std::int64_t rows) const {
  return program::tensor_times(shapes_.overlaps(instruction, rank, rows), tensor_group(rank),
                               costs_);
}

Dense::Moved Dense::gradient_sum(Rank rank, int layer) const {
  const std::vector<Rank> group = replicas(rank);
  if (group.size() == 1) return {};
  const double bytes =
      elements(rank, layer) * config::bytes_of(e_.cluster.software.gradients, e_.run.dtype);
  const Collective what =
      step_shape_.shards_optimizer ? Collective::reduce_scatter : Collective::all_reduce;
  return {costs_.collective(what, bytes, group), static_cast<std::int64_t>(bytes)};
}

Dense::Moved Dense::gather_layer(Rank rank, int layer) const {
  const std::vector<Rank> group = replicas(rank);
  if (group.size() == 1) return {};
  const double bytes = elements(rank, layer) * bytes_.element;
  return {costs_.collective(Collective::all_gather, bytes, group),
          static_cast<std::int64_t>(bytes)};
}

double Dense::gather_parameters(Rank rank) const {
  const std::vector<Rank> group = replicas(rank);
  if (group.size() == 1) return 0;
  const double all = step_shape_.layers_of_rank(rank) * elements(rank, 0) + elements(rank, -1);
  return costs_.collective(Collective::all_gather, all * bytes_.element, group);
}

std::vector<Rank> Dense::tensor_group(Rank rank) const {
  program::Coordinates at = layout_.coordinates(rank);
  std::vector<Rank> group;
  for (at.tensor = 0; at.tensor < layout_.tensor(); ++at.tensor) group.push_back(layout_.rank(at));
  return group;
}

std::vector<Rank> Dense::replicas(Rank rank) const {
  program::Coordinates at = layout_.coordinates(rank);
  std::vector<Rank> group;
  for (at.data = 0; at.data < layout_.data(); ++at.data) {
    for (at.context = 0; at.context < layout_.context(); ++at.context) {
      group.push_back(layout_.rank(at));
    }
  }
  return group;
}

/// Of a layer; for `layer` -1, of the embedding and the head.
double Dense::elements(Rank rank, int layer) const {
  if (layer < 0) return program::table_elements(e_.model, layout_, rank);
  return static_cast<double>(cost::layer_parameters(e_.model)) / layout_.tensor();
}

}  // namespace cadenza::simulate
