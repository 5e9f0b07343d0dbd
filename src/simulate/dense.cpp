// SPDX-License-Identifier: Apache-2.0
#include "dense.hpp"

#include "cadenza/config/flops.hpp"
#include "cadenza/program/flops.hpp"
#include "cadenza/simulate/operation_work.hpp"

namespace cadenza::simulate {
namespace {

using program::Operation;
using program::Pass;

/// How often an operation gathers rows over its tensor group (elements as they are stored) and sums
/// them (as accumulators): src/model/llama_forward.cpp, llama_backward.cpp.
struct TensorCollectives {
  int gathers = 0;
  int reductions = 0;
  int wide_gathers = 0;  ///< of accumulators
};

TensorCollectives tensor_collectives(const program::Step& step, config::Recompute recompute) {
  const bool forward = step.pass == Pass::forward;
  switch (step.operation) {
    case Operation::embed:
      return {0, 1, 0};
    case Operation::embed_gradient:
      return {0, 0, 1};
    case Operation::attention_inputs:
      return forward ? TensorCollectives{1, 0, 0} : TensorCollectives{1, 1, 0};
    case Operation::attention_outputs:
      if (forward) return {1, 2, 0};
      return {recompute == config::Recompute::mlp ? 4 : 3, 1, 0};
    case Operation::loss:
      return {1, 1, 0};
    default:
      return {};
  }
}

}  // namespace

Dense::Dense(const config::Experiment& experiment, const program::Outline& outline,
             const Costs& costs)
    : e_(experiment),
      layout_(outline.layout),
      costs_(costs),
      layers_(outline.layers * outline.pipeline.chunks),
      bytes_(config::element_bytes(experiment.run.dtype)) {}

const DenseTime& Dense::time(const program::Step& step, Rank rank, std::int64_t rows) {
  if (step.tick < 0) {  // the size of its weights depends on the rank
    optimizer_ = {costs_.compute(step, rank, rows), 0, 0};
    return optimizer_;
  }
  const auto key = std::tuple(step.operation, step.pass, step.again, rows);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  const DenseTime time{costs_.compute(step, rank, rows), tensor_seconds(step, rank, rows),
                       program::matrix_flops(step, e_.model, layout_.tensor(), rows)};
  return known_.emplace(key, time).first->second;
}

std::int64_t Dense::stream_bytes(std::int64_t rows) const {
  return rows / layout_.tensor() * e_.model.d_model * bytes_.accumulator;
}

double Dense::tensor_seconds(const program::Step& step, Rank rank, std::int64_t rows) const {
  if (layout_.tensor() == 1 || rows == 0) return 0;
  const std::vector<Rank> group = tensor_group(rank);
  const TensorCollectives count = tensor_collectives(step, e_.run.recompute);
  const double elements = static_cast<double>(rows) * static_cast<double>(e_.model.d_model);
  const double narrow = elements * bytes_.element;
  const double wide = elements * bytes_.accumulator;
  return count.gathers * costs_.collective(Collective::all_gather, narrow, group) +
         count.wide_gathers * costs_.collective(Collective::all_gather, wide, group) +
         count.reductions * costs_.collective(Collective::reduce_scatter, wide, group);
}

Dense::Sum Dense::gradient_sum(Rank rank, int layer) const {
  const std::vector<Rank> group = replicas(rank);
  if (group.size() == 1) return {};
  const double bytes =
      (layer < 0 ? table_elements(e_.model, layout_, rank) : layer_elements()) * bytes_.accumulator;
  const Collective what = e_.parallel.shard == config::Shard::optimizer ? Collective::reduce_scatter
                                                                        : Collective::all_reduce;
  return {costs_.collective(what, bytes, group), static_cast<std::int64_t>(bytes)};
}

double Dense::gather_parameters(Rank rank) const {
  const std::vector<Rank> group = replicas(rank);
  if (group.size() == 1) return 0;
  const double elements = layers_ * layer_elements() + table_elements(e_.model, layout_, rank);
  return costs_.collective(Collective::all_gather, elements * bytes_.accumulator, group);
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

double Dense::layer_elements() const {
  return static_cast<double>(config::layer_parameters(e_.model)) / layout_.tensor();
}

}  // namespace cadenza::simulate
