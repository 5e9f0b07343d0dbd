// SPDX-License-Identifier: Apache-2.0
// The collectives of a tensor group in each operation of src/model: the only list of them.
#include <algorithm>

#include "cadenza/base/error.hpp"
#include "cadenza/cost/flops.hpp"
#include "cadenza/program/operation_work.hpp"

namespace cadenza::program {
namespace {

class Sequence {
 public:
  /// @param stream   elements of [tokens, d_model]
  /// @param element  bytes of a stored number
  /// @param sum      bytes of a sum
  Sequence(std::int64_t stream, std::int64_t element, std::int64_t sum)
      : stream_(stream), element_(element), sum_(sum) {}

  void gather() { list_.push_back({Collective::all_gather, stream_ * element_}); }
  void gather_sums() { list_.push_back({Collective::all_gather, stream_ * sum_}); }
  void reduce() { list_.push_back({Collective::reduce_scatter, stream_ * sum_}); }
  void reduce_all(std::int64_t elements) {
    list_.push_back({Collective::all_reduce, elements * sum_});
  }
  std::vector<TensorCollective> take() { return std::move(list_); }

 private:
  std::int64_t stream_, element_, sum_;
  std::vector<TensorCollective> list_;
};

void add_attention_inputs(const Step& step, Sequence& sequence) {
  if (is_gradient(step)) sequence.reduce();
  sequence.gather();
}

void add_attention_outputs(const Step& step, config::Recompute recompute, Sequence& sequence) {
  if (is_gradient(step)) {
    if (recompute == config::Recompute::mlp) sequence.gather();
    sequence.gather();
    sequence.reduce();
    sequence.gather();
    sequence.gather();
    return;
  }
  sequence.reduce();
  sequence.gather();
  if (!step.recompute) sequence.reduce();  // only as far as the gradient needs it
}

/// @param vocab  rows of the vocabulary on the rank with most of them
void add_loss(std::int64_t rows, std::int64_t vocab, config::DeviceKind device,
              Sequence& sequence) {
  sequence.gather();
  const std::int64_t most = cost::logit_rows(vocab, rows, device);
  for (std::int64_t row = 0; row < rows; row += most) {
    const std::int64_t count = std::min(most, rows - row);
    sequence.reduce_all(count);      // largest logits
    sequence.reduce_all(2 * count);  // sums of exponentials, logits of the targets
  }
  sequence.reduce();
}

}  // namespace

std::vector<TensorCollective> OperationShapes::collectives(const Step& step, Rank rank,
                                                           std::int64_t rows) const {
  const int tensor = layout_.tensor();
  if (tensor == 1) return {};
  Sequence sequence(rows * model_.d_model, element_, sum_);
  const Operation operation = step.operation;
  if (operation == Operation::embed) {
    sequence.reduce();
  } else if (operation == Operation::embed_gradient) {
    sequence.gather_sums();
  } else if (operation == Operation::attention_inputs) {
    add_attention_inputs(step, sequence);
  } else if (operation == Operation::attention_outputs) {
    add_attention_outputs(step, recompute_, sequence);
  } else if (operation == Operation::loss) {
    add_loss(rows, (model_.vocab + tensor - 1) / tensor, device_, sequence);
  } else if (operation == Operation::reduce_gradients) {
    sequence.reduce_all(gains(rank));
  } else if (describe(operation).group == Group::tensor) {
    fail(ExitCode::internal, "{} says nothing of its collectives", name(operation));
  }
  return sequence.take();
}

/// Elements of the norms' gains. Every rank of a tensor group has all of those of its layers.
std::int64_t OperationShapes::gains(Rank rank) const {
  const bool last = layout_.coordinates(rank).pipeline + 1 == layout_.pipeline();
  return (2 * model_.layers / layout_.pipeline() + (last ? 1 : 0)) * model_.d_model;
}

}  // namespace cadenza::program
