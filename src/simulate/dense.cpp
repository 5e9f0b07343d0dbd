// SPDX-License-Identifier: Apache-2.0
#include "dense.hpp"

#include <algorithm>
#include <utility>

#include "cadenza/config/flops.hpp"
#include "cadenza/program/flops.hpp"
#include "cadenza/simulate/operation_work.hpp"

namespace cadenza::simulate {
namespace {

using program::Operation;
using program::Pass;

/// What a tensor group does in an operation, in the order of src/model/llama_forward.cpp and
/// llama_backward.cpp.
class Sequence {
 public:
  /// @param rows   [tokens, d_model], elements
  Sequence(const Costs& costs, std::vector<Rank> group, std::int64_t rows,
           const config::ElementBytes& bytes)
      : costs_(costs), group_(std::move(group)), rows_(rows), bytes_(bytes) {}

  void gather() { add(Collective::all_gather, rows_ * bytes_.element); }
  void gather_sums() { add(Collective::all_gather, rows_ * bytes_.accumulator); }
  void reduce() { add(Collective::reduce_scatter, rows_ * bytes_.accumulator); }
  void reduce_all(std::int64_t elements) {
    add(Collective::all_reduce, elements * bytes_.accumulator);
  }
  std::vector<TensorCollective> take() { return std::move(list_); }

 private:
  void add(Collective what, std::int64_t bytes) {
    list_.push_back({what, bytes, costs_.collective(what, static_cast<double>(bytes), group_)});
  }

  const Costs& costs_;
  std::vector<Rank> group_;
  std::int64_t rows_;
  config::ElementBytes bytes_;
  std::vector<TensorCollective> list_;
};

void add_attention_outputs(const program::Step& step, config::Recompute recompute,
                           Sequence& sequence) {
  if (step.pass == Pass::backward && !step.again) {
    if (recompute == config::Recompute::mlp) sequence.gather();
    sequence.gather();
    sequence.reduce();
    sequence.gather();
    sequence.gather();
    return;
  }
  sequence.reduce();
  sequence.gather();
  if (!step.again) sequence.reduce();  // as far as the gradient reads it
}

}  // namespace

Dense::Dense(const config::Experiment& experiment, const program::StepShape& outline,
             const Costs& costs)
    : e_(experiment),
      layout_(outline.layout),
      costs_(costs),
      layers_(outline.layers * outline.pipeline.chunks),
      bytes_(config::element_bytes(experiment.run.dtype)) {}

double DenseTime::collective_seconds() const {
  double seconds = 0;
  for (const TensorCollective& collective : collectives) seconds += collective.seconds;
  return seconds;
}

const DenseTime& Dense::time(const program::Step& step, Rank rank, std::int64_t rows) {
  if (step.tick < 0) {  // the size of its weights depends on the rank
    optimizer_ = {costs_.compute(step, rank, rows), 0, tensor_collectives(step, rank, rows)};
    return optimizer_;
  }
  const int group = rank / layout_.tensor();
  const auto key = std::tuple(group, step.operation, step.pass, step.again, rows);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  const DenseTime time{costs_.compute(step, rank, rows), program::matrix_flops(step, e_, rows),
                       tensor_collectives(step, rank, rows)};
  return known_.emplace(key, time).first->second;
}

std::int64_t Dense::stream_bytes(std::int64_t rows) const {
  return rows / layout_.tensor() * e_.model.d_model * bytes_.accumulator;
}

std::vector<TensorCollective> Dense::tensor_collectives(const program::Step& step, Rank rank,
                                                        std::int64_t rows) const {
  if (layout_.tensor() == 1) return {};
  Sequence sequence(costs_, tensor_group(rank), rows * e_.model.d_model, bytes_);
  switch (step.operation) {
    case Operation::embed:
      sequence.reduce();
      break;
    case Operation::embed_gradient:
      sequence.gather_sums();
      break;
    case Operation::attention_inputs:
      if (step.pass == Pass::backward && !step.again) sequence.reduce();
      sequence.gather();
      break;
    case Operation::attention_outputs:
      add_attention_outputs(step, e_.run.recompute, sequence);
      break;
    case Operation::loss: {
      sequence.gather();
      const std::int64_t vocab = (e_.model.vocab + layout_.tensor() - 1) / layout_.tensor();
      const std::int64_t most = config::logit_rows(vocab, rows);
      for (std::int64_t row = 0; row < rows; row += most) {
        const std::int64_t count = std::min(most, rows - row);
        sequence.reduce_all(count);      // largest logits
        sequence.reduce_all(2 * count);  // sums of exponentials, logits of the targets
      }
      sequence.reduce();
      break;
    }
    case Operation::reduce_gradients:
      sequence.reduce_all(norm_elements(rank));
      break;
    default:
      break;
  }
  return sequence.take();
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

/// Gains, of which every rank of a tensor group has all of its layers.
std::int64_t Dense::norm_elements(Rank rank) const {
  const bool last = layout_.coordinates(rank).pipeline + 1 == layout_.pipeline();
  return (2 * layers_ + (last ? 1 : 0)) * e_.model.d_model;
}

}  // namespace cadenza::simulate
