// SPDX-License-Identifier: Apache-2.0
// Products, bytes and collectives of operations by the shape of the model. The list of the
// collectives of a tensor group is the only one.
#include "cadenza/program/operation_work.hpp"

#include <algorithm>
#include <numeric>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/cost/flops.hpp"
#include "cadenza/program/stages.hpp"

namespace cadenza::program {

namespace {

Product forward(double rows, double outputs, double inputs) {
  return {ProductKind::forward, rows, outputs, inputs};
}

/// Adds the gradient products of a linear layer with weight [outputs, inputs].
void add_gradients(double rows, double outputs, double inputs, OperationWork& work) {
  work.products.push_back({ProductKind::data_gradient, rows, inputs, outputs});
  work.products.push_back({ProductKind::weight_gradient, outputs, inputs, rows});
}

}  // namespace

double OperationWork::flops() const {
  double sum = 0;
  for (const Product& product : products) sum += product.flops();
  return sum;
}

OperationShapes::OperationShapes(const config::Experiment& experiment, const Layout& layout)
    : model_(experiment.model),
      recompute_(experiment.run.recompute),
      device_(experiment.run.device),
      layout_(layout),
      sharers_(experiment.cluster.software.sequence_parallel ? layout.tensor() : 1),
      layers_(static_cast<std::size_t>(layout.pipeline())),
      shards_optimizer_(experiment.parallel.shard != config::Shard::none),
      element_(config::element_bytes(experiment.run.dtype).element),
      sum_(config::element_bytes(experiment.run.dtype).accumulator),
      stream_(config::bytes_of(experiment.cluster.software.residual, experiment.run.dtype)),
      width_(static_cast<double>(model_.d_model)),
      queries_(width_ / layout.tensor()),
      keys_(static_cast<double>(model_.kv_heads * model_.head_dim()) / layout.tensor()),
      heads_(static_cast<double>(model_.heads) / layout.tensor()),
      ffn_(static_cast<double>(model_.ffn) / layout.tensor()),
      vocab_(static_cast<double>(model_.vocab) / layout.tensor()) {
  const std::vector<Range> parts = stage_layers(experiment);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    layers_[part % layers_.size()] += parts[part].size();
  }
}

OperationWork OperationShapes::work(const Instruction& instruction, Rank rank,
                                    std::int64_t rows) const {
  using Shapes = OperationShapes;
  using Work = OperationWork (*)(const Shapes&, const Instruction&, Rank, double);
  static constexpr auto kWork = handlers_of<Work>(
      [](const OperationInfo& info) { return info.has_shape; },
      {{Operation::load,  // three numbers per token, written and copied
        [](const Shapes&, const Instruction&, Rank, double rows) -> OperationWork {
          return {{}, rows * 3 * 4 * 2};
        }},
       {Operation::embed,  // a tensor rank reads the rows of its part of the vocabulary
        [](const Shapes& s, const Instruction&, Rank, double rows) -> OperationWork {
          return {{}, rows * s.width_ * (s.sum_ + 1.0 * s.element_ / s.layout_.tensor())};
        }},
       {Operation::embed_gradient,
        [](const Shapes& s, const Instruction&, Rank, double rows) -> OperationWork {
          return {{}, rows * s.width_ * 3 / s.layout_.tensor() * s.sum_};
        }},
       {Operation::attention_inputs,
        [](const Shapes& s, const Instruction& instruction, Rank, double rows) {
          return is_gradient(instruction) ? s.attention_inputs_gradient(rows)
                                          : s.attention_inputs(instruction, rows);
        }},
       {Operation::attention_outputs,
        [](const Shapes& s, const Instruction& instruction, Rank, double rows) {
          return is_gradient(instruction) ? s.attention_outputs_gradient(rows)
                                          : s.attention_outputs(instruction, rows);
        }},
       {Operation::begin_attention,
        [](const Shapes& s, const Instruction&, Rank, double rows) -> OperationWork {
          return {{}, rows * (s.queries_ * (s.sum_ + s.element_) + s.heads_ * s.sum_)};
        }},
       {Operation::loss, [](const Shapes& s, const Instruction& instruction, Rank,
                            double rows) { return s.loss(instruction, rows); }},
       {Operation::gradient_norm,
        [](const Shapes& s, const Instruction&, Rank rank, double) -> OperationWork {
          return {{}, s.owned_elements(rank) * s.sum_};
        }},
       {Operation::optimize,
        [](const Shapes& s, const Instruction&, Rank rank, double) -> OperationWork {
          return {{}, s.optimizer_bytes(rank)};
        }}});
  const Work work = kWork[at(instruction.operation)];
  return work != nullptr ? work(*this, instruction, rank, static_cast<double>(rows))
                         : OperationWork{};
}

std::int64_t OperationShapes::stream_bytes(std::int64_t rows) const {
  return rows / sharers_ * model_.d_model * stream_;
}

/// Bytes of an RMSNorm that adds a residual first.
double OperationShapes::norm_bytes(double rows) const {
  return rows / sharers_ * width_ * (3 * stream_ + element_);
}

double OperationShapes::norm_gradient_bytes(double rows) const {
  return rows / sharers_ * width_ * (4 * stream_ + 2 * element_);
}

OperationWork OperationShapes::attention_inputs(const Instruction& instruction, double rows) const {
  const double rotation = rows * keys_ * 2 * element_;
  const double empty_outputs = rows * (queries_ + heads_) * sum_;
  const double residual = instruction.recompute ? rows / sharers_ * width_ * 2 * stream_ : 0.0;
  return {
      {forward(rows, queries_, width_), forward(rows, keys_, width_), forward(rows, keys_, width_)},
      norm_bytes(rows) - residual + rotation + empty_outputs};
}

OperationWork OperationShapes::attention_inputs_gradient(double rows) const {
  const double joined = queries_ + 2 * keys_;
  OperationWork work{{}, rows * joined * (sum_ + element_) + norm_gradient_bytes(rows)};
  add_gradients(rows, joined, width_, work);
  return work;
}

OperationWork OperationShapes::attention_outputs(const Instruction& instruction,
                                                 double rows) const {
  OperationWork work{{forward(rows, width_, queries_), forward(rows, 2 * ffn_, width_)},
                     norm_bytes(rows)};
  if (instruction.recompute) return work;  // only as far as the gradient needs it
  work.products.push_back(forward(rows, width_, ffn_));
  work.bytes += rows * 3 * ffn_ * element_;
  return work;
}

OperationWork OperationShapes::attention_outputs_gradient(double rows) const {
  OperationWork work{{},
                     rows * 6 * ffn_ * element_ + norm_gradient_bytes(rows) +
                         rows * (queries_ + 2 * keys_) * sum_};
  add_gradients(rows, width_, ffn_, work);
  add_gradients(rows, 2 * ffn_, width_, work);
  add_gradients(rows, width_, queries_, work);
  if (recompute_ == config::Recompute::mlp) {
    work.products.push_back(forward(rows, 2 * ffn_, width_));
    work.bytes += rows / sharers_ * width_ * (sum_ + element_);
  }
  return work;
}

OperationWork OperationShapes::loss(const Instruction& instruction, double rows) const {
  OperationWork work{{forward(rows, vocab_, width_)},
                     norm_bytes(rows) + rows * vocab_ * (3 * sum_ + element_)};
  if (!is_gradient(instruction)) return work;
  work.bytes += norm_gradient_bytes(rows);
  add_gradients(rows, vocab_, width_, work);
  return work;
}

/// Number of weights that the rank updates.
double OperationShapes::owned_elements(Rank rank) const {
  const auto layers = static_cast<double>(layers_[at(layout_.coordinates(rank).pipeline)]);
  return (layers * static_cast<double>(cost::layer_parameters(model_)) / layout_.tensor() +
          table_elements(model_, layout_, rank)) /
         (shards_optimizer_ ? layout_.data() * layout_.context() : 1);
}

/// Bytes of the update: it reads weights, gradients and two moments and writes all but the
/// gradients, and rounded weights where they are stored in another type.
double OperationShapes::optimizer_bytes(Rank rank) const {
  return owned_elements(rank) * (7 * sum_ + (element_ == sum_ ? 0 : element_));
}

double table_elements(const config::Model& model, const Layout& layout, Rank rank) {
  const int stage = layout.coordinates(rank).pipeline;
  const bool last = stage + 1 == layout.pipeline();
  const double tables = (stage == 0 ? 1 : 0) + (last && !model.tie_embeddings ? 1 : 0);
  return tables * static_cast<double>(model.vocab) * static_cast<double>(model.d_model) /
         layout.tensor();
}

namespace {

/// Seconds per token of a rank in a layer outside core attention.
double seconds_of_token(const config::Experiment& e, const Layout& layout, Pass pass,
                        const cost::Rates& rates) {
  const OperationShapes shapes(e, layout);
  const std::int64_t rows = std::max<std::int64_t>(1, e.batch.microbatch / e.parallel.context);
  std::vector<Rank> tensor_group(static_cast<std::size_t>(layout.tensor()));
  std::iota(tensor_group.begin(), tensor_group.end(), 0);
  double seconds = 0;
  for (const Instruction& instruction : layer_instructions(e)) {
    const Pass runs_in = instruction.recompute ? Pass::backward : instruction.pass;
    if (runs_in != pass) continue;
    const double computing = seconds_of(instruction, shapes.work(instruction, 0, rows), rates);
    double collectives = 0;
    for (const TensorCollective& collective : shapes.collectives(instruction, 0, rows)) {
      collectives +=
          rates.collective(collective.what, static_cast<double>(collective.bytes), tensor_group);
    }
    seconds += computing + exposed_seconds(computing, collectives, rates);
  }
  return seconds / static_cast<double>(rows);
}

}  // namespace

double seconds_of(const Instruction& instruction, const OperationWork& work,
                  const cost::Rates& rates) {
  double seconds = work.bytes / element_wise_rate(rates.machine().element_wise, instruction);
  const config::Software& software = rates.software();
  if (instruction.operation == Operation::loss) {
    seconds /= software.loss_rate;
  } else if (describe(instruction.operation).granularity != Granularity::step) {
    seconds /= software.element_wise_rate;
  }
  // Half of a pass through a layer each.
  if (instruction.operation == Operation::attention_inputs ||
      instruction.operation == Operation::attention_outputs) {
    seconds += software.layer_seconds * (is_gradient(instruction) ? 1.0 : 0.5);
  }
  for (const Product& product : work.products) seconds += rates.product_seconds(product);
  return seconds;
}

double exposed_seconds(double computing, double collectives, const cost::Rates& rates) {
  const auto pieces = static_cast<double>(rates.software().pieces);
  return collectives - (1 - 1 / pieces) * std::min(computing, collectives);
}

std::vector<Instruction> layer_instructions(const config::Experiment& e) {
  const auto make = [](Operation operation, Pass pass, bool recompute = false) {
    Instruction s;
    s.operation = operation;
    s.pass = pass;
    s.recompute = recompute;
    s.tick = 0;
    return s;
  };
  std::vector<Instruction> instructions = {make(Operation::attention_inputs, Pass::forward),
                                           make(Operation::attention_outputs, Pass::forward),
                                           make(Operation::attention_outputs, Pass::backward),
                                           make(Operation::begin_attention, Pass::backward),
                                           make(Operation::attention_inputs, Pass::backward)};
  using config::Recompute;
  if (e.run.recompute == Recompute::attention || e.run.recompute == Recompute::layer) {
    instructions.push_back(make(Operation::attention_inputs, Pass::forward, true));
  }
  if (e.run.recompute == Recompute::layer) {
    instructions.push_back(make(Operation::attention_outputs, Pass::forward, true));
  }
  return instructions;
}

cost::Pool planning_pool(const config::Experiment& experiment, const config::Machine& machine,
                         const Layout& layout) {
  cost::Pool pool{cost::Rates(machine, experiment.cluster.even(), experiment.model.head_dim()),
                  layout.members(0)};
  pool.tensor = layout.tensor();
  pool.forward_seconds = seconds_of_token(experiment, layout, Pass::forward, pool.rates);
  pool.backward_seconds = seconds_of_token(experiment, layout, Pass::backward, pool.rates);
  // With phases all stages meet in every tick.
  const bool meets = experiment.parallel.pipeline > 1 &&
                     experiment.pipeline_schedule() == config::PipelineSchedule::phase_aligned;
  const std::int64_t each = experiment.batch.tokens / experiment.batch.microbatch;
  if (!meets)
    pool.microbatches =
        static_cast<int>(std::max<std::int64_t>(1, each / experiment.parallel.data));
  return pool;
}

double* rate_of(config::ElementWise& rates, const Instruction& instruction) {
  const OperationInfo& info = describe(instruction.operation);
  if (info.rate != nullptr) return &(rates.*info.rate);
  if (info.pass_rates == nullptr) return nullptr;
  config::PassRates& of = rates.*info.pass_rates;
  return instruction.pass == Pass::forward ? &of.forward : &of.backward;
}

double element_wise_rate(config::ElementWise rates, const Instruction& instruction) {
  const double* rate = rate_of(rates, instruction);
  return rate != nullptr && *rate > 0 ? *rate : rates.bytes_per_second;
}

// The collectives of a tensor group in each operation of src/model: the only list of them.

namespace {

class Sequence {
 public:
  /// @param stream   elements of [tokens, d_model]
  /// @param element  bytes of a stored number
  /// @param residual bytes of a number of the residual stream
  /// @param sum      bytes of a sum
  Sequence(std::int64_t stream, std::int64_t element, std::int64_t residual, std::int64_t sum)
      : stream_(stream), element_(element), residual_(residual), sum_(sum) {}

  void gather() { list_.push_back({Collective::all_gather, stream_ * element_}); }
  void gather_sums() { list_.push_back({Collective::all_gather, stream_ * residual_}); }
  void reduce() { list_.push_back({Collective::reduce_scatter, stream_ * residual_}); }
  void reduce_all(std::int64_t elements) {
    list_.push_back({Collective::all_reduce, elements * sum_});
  }
  std::vector<TensorCollective> take() { return std::move(list_); }

 private:
  std::int64_t stream_, element_, residual_, sum_;
  std::vector<TensorCollective> list_;
};

void add_attention_inputs(const Instruction& instruction, Sequence& sequence) {
  if (is_gradient(instruction)) sequence.reduce();
  sequence.gather();
}

void add_attention_outputs(const Instruction& instruction, config::Recompute recompute,
                           Sequence& sequence) {
  if (is_gradient(instruction)) {
    if (recompute == config::Recompute::mlp) sequence.gather();
    sequence.gather();
    sequence.reduce();
    sequence.gather();
    sequence.gather();
    return;
  }
  sequence.reduce();
  sequence.gather();
  if (!instruction.recompute) sequence.reduce();  // only as far as the gradient needs it
}

/// @param vocab  rows of the vocabulary on the rank with most of them
void add_loss(const Instruction& instruction, std::int64_t rows, std::int64_t vocab,
              config::DeviceKind device, Sequence& sequence) {
  sequence.gather();
  const std::int64_t most = cost::logit_rows(vocab, rows, device);
  for (std::int64_t row = 0; row < rows; row += most) {
    const std::int64_t count = std::min(most, rows - row);
    sequence.reduce_all(count);      // largest logits
    sequence.reduce_all(2 * count);  // sums of exponentials, logits of the targets
  }
  if (is_gradient(instruction)) sequence.reduce();
}

}  // namespace

std::vector<TensorCollective> OperationShapes::collectives(const Instruction& instruction,
                                                           Rank rank, std::int64_t rows) const {
  const int tensor = layout_.tensor();
  if (tensor == 1) return {};
  Sequence sequence(rows * model_.d_model, element_, stream_, sum_);
  const Operation operation = instruction.operation;
  if (operation == Operation::embed) {
    sequence.reduce();
  } else if (operation == Operation::embed_gradient) {
    sequence.gather_sums();
  } else if (operation == Operation::attention_inputs) {
    add_attention_inputs(instruction, sequence);
  } else if (operation == Operation::attention_outputs) {
    add_attention_outputs(instruction, recompute_, sequence);
  } else if (operation == Operation::loss) {
    add_loss(instruction, rows, (model_.vocab + tensor - 1) / tensor, device_, sequence);
  } else if (operation == Operation::reduce_gradients) {
    sequence.reduce_all(gains(rank));
  } else if (describe(operation).group == Group::tensor) {
    fail(ExitCode::internal, "{} says nothing of its collectives", name(operation));
  }
  return sequence.take();
}

/// Elements of the norms' gains. Every rank of a tensor group has all of those of its layers.
std::int64_t OperationShapes::gains(Rank rank) const {
  const int stage = layout_.coordinates(rank).pipeline;
  const bool last = stage + 1 == layout_.pipeline();
  return (2 * layers_[at(stage)] + (last ? 1 : 0)) * model_.d_model;
}

}  // namespace cadenza::program
