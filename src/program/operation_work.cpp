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

Product Linear::forward(double rows) const {
  return {ProductKind::forward, rows, outputs, inputs};
}
Product Linear::input_gradient(double rows) const {
  return {ProductKind::data_gradient, rows, inputs, outputs};
}
Product Linear::weight_gradient(double rows) const {
  return {ProductKind::weight_gradient, outputs, inputs, rows};
}

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
      stream_(config::bytes_of(experiment.residual(), experiment.run.dtype)),
      part_(std::min(config::bytes_of(experiment.cluster.software.residual, experiment.run.dtype),
                     config::bytes_of(experiment.parallel.tensor_sums, experiment.run.dtype))),
      shards_(experiment.cluster.software.overlaps_tensor ? layout.tensor() : 1),
      gathers_again_(!experiment.cluster.software.overlaps_tensor ||
                     experiment.cluster.software.says_kept()),
      width_(static_cast<double>(model_.d_model)),
      queries_(static_cast<double>(model_.query_width()) / layout.tensor()),
      keys_(static_cast<double>(model_.kv_heads * model_.head_dim()) / layout.tensor()),
      normed_(model_.qk_norm ? queries_ + keys_ : 0),
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

std::int64_t OperationShapes::kept_bytes(std::int64_t rows) const {
  using config::Recompute;
  const bool layer = recompute_ == Recompute::layer;
  const double held = 1.0 / sharers_;  // of every row
  double bytes = held * width_ * stream_;
  if (!layer && recompute_ != Recompute::attention) {
    bytes += held * sum_ + (2 * queries_ + 2 * keys_ + normed_) * element_ + heads_ * sum_;
  }
  if (!layer) bytes += held * (width_ * stream_ + sum_);
  if (!layer && recompute_ != Recompute::mlp) bytes += 2 * ffn_ * element_;
  return static_cast<std::int64_t>(bytes * static_cast<double>(rows));
}

/// Bytes of an RMSNorm that adds a residual first.
double OperationShapes::norm_bytes(double rows) const {
  return rows / sharers_ * width_ * (3 * stream_ + element_);
}

double OperationShapes::norm_gradient_bytes(double rows) const {
  return rows / sharers_ * width_ * (4 * stream_ + 2 * element_);
}

template <typename Of>
void OperationShapes::add_by_shard(double rows, Of of, OperationWork& work) const {
  for (int shard = 0; shard < shards_; ++shard) work.products.push_back(of(rows / shards_));
}

OperationWork OperationShapes::attention_inputs(const Instruction& instruction, double rows) const {
  const double rotation = rows * keys_ * 2 * element_;
  const double empty_outputs = rows * (queries_ + heads_) * sum_;
  const double residual = instruction.recompute ? rows / sharers_ * width_ * 2 * stream_ : 0.0;
  const double biases = model_.qkv_bias ? rows * joined().outputs * 2 * element_ : 0.0;
  const double norms = rows * normed_ * 2 * element_;
  OperationWork work{{}, norm_bytes(rows) - residual + biases + norms + rotation + empty_outputs};
  for (const Linear& linear : {query(), key(), key()}) {
    add_by_shard(
        rows, [&](double some) { return linear.forward(some); }, work);
  }
  return work;
}

OperationWork OperationShapes::attention_inputs_gradient(double rows) const {
  const Linear linear = joined();
  const double biases = model_.qkv_bias ? rows * linear.outputs * element_ : 0.0;
  const double norms = rows * normed_ * 3 * element_;
  OperationWork work{
      {}, rows * linear.outputs * (sum_ + element_) + biases + norms + norm_gradient_bytes(rows)};
  add_by_shard(
      rows, [&](double some) { return linear.input_gradient(some); }, work);
  work.products.push_back(linear.weight_gradient(rows));
  return work;
}

OperationWork OperationShapes::attention_outputs(const Instruction& instruction,
                                                 double rows) const {
  OperationWork work{{}, norm_bytes(rows)};
  const auto add = [&](const Linear& linear) {
    add_by_shard(
        rows, [&](double some) { return linear.forward(some); }, work);
  };
  add(output());
  add(gate_up());
  if (instruction.recompute) return work;  // only as far as the gradient needs it
  add(down());
  work.bytes += rows * 3 * ffn_ * element_;
  return work;
}

OperationWork OperationShapes::attention_outputs_gradient(double rows) const {
  OperationWork work{{},
                     rows * 6 * ffn_ * element_ + norm_gradient_bytes(rows) +
                         rows * (queries_ + 2 * keys_) * sum_};
  for (const Linear& linear : {down(), gate_up(), output()}) {
    add_by_shard(
        rows, [&](double some) { return linear.input_gradient(some); }, work);
    work.products.push_back(linear.weight_gradient(rows));
  }
  if (recompute_ == config::Recompute::mlp) {
    add_by_shard(
        rows, [&](double some) { return gate_up().forward(some); }, work);
    work.bytes += rows / sharers_ * width_ * (sum_ + element_);
  }
  return work;
}

OperationWork OperationShapes::loss(const Instruction& instruction, double rows) const {
  OperationWork work{{head().forward(rows)},
                     norm_bytes(rows) + rows * vocab_ * (3 * sum_ + element_)};
  if (!is_gradient(instruction)) return work;
  work.bytes += norm_gradient_bytes(rows);
  work.products.push_back(head().input_gradient(rows));
  work.products.push_back(head().weight_gradient(rows));
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
    seconds += computing;
    for (const TimedCollective& timed :
         tensor_times(shapes.overlaps(instruction, 0, rows), tensor_group, rates)) {
      seconds += timed.seconds;
    }
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

std::vector<TimedCollective> tensor_times(const std::vector<TensorOverlap>& overlaps,
                                          const std::vector<Rank>& group,
                                          const cost::Rates& rates) {
  std::vector<TimedCollective> timed;
  const bool hides = rates.software().overlaps_tensor;
  const double left = 1 - rates.machine().links.compute_share;
  for (const TensorOverlap& overlap : overlaps) {
    const std::size_t first = timed.size();
    double sum = 0, beside = 0;
    for (const TensorCollective& collective : overlap.collectives) {
      const auto bytes = static_cast<double>(collective.bytes);
      const bool by_shard = hides && collective.what != Collective::all_reduce;
      const double seconds = by_shard ? rates.exchange(collective.what, bytes, group)
                                      : rates.collective(collective.what, bytes, group);
      timed.push_back({collective, seconds});
      sum += seconds;
    }
    if (!hides || sum == 0) continue;
    for (const Product& product : overlap.beside) beside += rates.product_seconds(product);
    const double hidden = left * std::min(sum, beside);
    for (std::size_t i = first; i < timed.size(); ++i) timed[i].seconds *= 1 - hidden / sum;
  }
  return timed;
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

class OverlapList {
 public:
  /// Bytes of a whole collective of [tokens, d_model].
  struct Bytes {
    std::int64_t gather, gather_sums, reduce;
  };
  explicit OverlapList(const Bytes& bytes) : bytes_(bytes) {}

  /// Begins collectives that are hidden by `beside` alone.
  OverlapList& next(std::vector<Product> beside = {}) {
    list_.push_back({{}, std::move(beside)});
    return *this;
  }
  OverlapList& gather() { return add(Collective::all_gather, bytes_.gather); }
  OverlapList& gather_sums() { return add(Collective::all_gather, bytes_.gather_sums); }
  OverlapList& reduce() { return add(Collective::reduce_scatter, bytes_.reduce); }
  OverlapList& reduce_all(std::int64_t bytes) { return add(Collective::all_reduce, bytes); }
  std::vector<TensorOverlap> take() { return std::move(list_); }

 private:
  OverlapList& add(Collective what, std::int64_t bytes) {
    list_.back().collectives.push_back({what, bytes});
    return *this;
  }
  Bytes bytes_;
  std::vector<TensorOverlap> list_;
};

// Of a product that runs shard by shard, all shards but one are computed while others travel: the
// first waits for nothing, or nothing waits for the last.

void OperationShapes::add_inputs_overlaps(const Instruction& instruction, double rows,
                                          OverlapList& to) const {
  const double beside = rows - rows / shards_;
  if (is_gradient(instruction)) {
    to.next({joined().input_gradient(beside), joined().weight_gradient(rows)}).gather().reduce();
    return;
  }
  to.next({query().forward(beside), key().forward(beside), key().forward(beside)}).gather();
}

void OperationShapes::add_outputs_overlaps(const Instruction& instruction, double rows,
                                           OverlapList& to) const {
  const double beside = rows - rows / shards_;
  if (is_gradient(instruction)) {
    const bool again = recompute_ == config::Recompute::mlp;
    if (again) to.next({gate_up().forward(beside)}).gather();
    to.next({down().input_gradient(beside)}).gather();
    to.next({gate_up().input_gradient(beside)});
    if (!again || gathers_again_) to.gather();
    to.reduce();
    to.next({gate_up().weight_gradient(rows), output().input_gradient(beside)}).gather();
    return;
  }
  to.next({output().forward(beside)}).reduce();
  to.next({gate_up().forward(beside)}).gather();
  if (instruction.recompute) return;  // only as far as the gradient needs it
  to.next({down().forward(beside)}).reduce();
}

void OperationShapes::add_loss_overlaps(const Instruction& instruction, std::int64_t rows,
                                        OverlapList& to) const {
  const int tensor = layout_.tensor();
  const std::int64_t vocab = (model_.vocab + tensor - 1) / tensor;  // of the rank with most of it
  to.next().gather();
  const std::int64_t most = cost::logit_rows(vocab, rows, device_);
  for (std::int64_t row = 0; row < rows; row += most) {
    const std::int64_t count = std::min(most, rows - row);
    to.reduce_all(count * sum_);      // largest logits
    to.reduce_all(2 * count * sum_);  // sums of exponentials, logits of the targets
  }
  if (is_gradient(instruction)) to.reduce();
}

std::vector<TensorOverlap> OperationShapes::overlaps(const Instruction& instruction, Rank rank,
                                                     std::int64_t rows) const {
  if (layout_.tensor() == 1) return {};
  const std::int64_t stream = rows * model_.d_model;
  OverlapList list({stream * element_, stream * stream_, stream * part_});
  const auto count = static_cast<double>(rows);
  const Operation operation = instruction.operation;
  if (operation == Operation::embed) {
    list.next().reduce();
  } else if (operation == Operation::embed_gradient) {
    list.next().gather_sums();
  } else if (operation == Operation::attention_inputs) {
    add_inputs_overlaps(instruction, count, list);
  } else if (operation == Operation::attention_outputs) {
    add_outputs_overlaps(instruction, count, list);
  } else if (operation == Operation::loss) {
    add_loss_overlaps(instruction, rows, list);
  } else if (operation == Operation::reduce_gradients) {
    list.next().reduce_all(gains(rank) * sum_);
  } else if (describe(operation).group == Group::tensor) {
    fail(ExitCode::internal, "{} says nothing of its collectives", name(operation));
  }
  return list.take();
}

std::vector<TensorCollective> OperationShapes::collectives(const Instruction& instruction,
                                                           Rank rank, std::int64_t rows) const {
  std::vector<TensorCollective> list;
  for (const TensorOverlap& overlap : overlaps(instruction, rank, rows)) {
    list.insert(list.end(), overlap.collectives.begin(), overlap.collectives.end());
  }
  return list;
}

/// Elements of the norms' gains. Every rank of a tensor group has all of those of its layers.
std::int64_t OperationShapes::gains(Rank rank) const {
  const int stage = layout_.coordinates(rank).pipeline;
  const bool last = stage + 1 == layout_.pipeline();
  const std::int64_t of_heads = model_.qk_norm ? 2 * layers_[at(stage)] * model_.head_dim() : 0;
  return (2 * layers_[at(stage)] + (last ? 1 : 0)) * model_.d_model + of_heads;
}

}  // namespace cadenza::program
