// SPDX-License-Identifier: Apache-2.0
// Measures everything but attention: matrix products, whole operations, copies and links.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "app/calibrate/calibration.hpp"
#include "app/calibrate/measure.hpp"
#include "cadenza/cost/product_time.hpp"
#include "cadenza/program/operation_work.hpp"
#include "cadenza/simulate/costs.hpp"

namespace cadenza::app {
namespace {

using program::Instruction;
using program::Operation;
using program::Pass;
using program::Product;

constexpr std::int64_t kDocument = 256;  // tokens: short, so that attention does not dominate

// Measurements of messages: seconds of kMessageBytes, except the latency.
constexpr double kMessageBytes = 16 << 20;
constexpr const char* kLatency = "latency";
constexpr const char* kTransfer = "transfer";
constexpr const char* kGather = "gather";
constexpr const char* kSum = "sum";
constexpr const char* kPack = "pack";
constexpr const char* kUnpack = "unpack";
constexpr const char* kPackSlices = "pack slices";
constexpr const char* kUnpackSlices = "unpack slices";
constexpr const char* kPackStreams = "pack streams";
constexpr const char* kUnpackStreams = "unpack streams";
constexpr std::array kMessages = {kLatency,     kTransfer,     kGather,     kSum,
                                  kPack,        kUnpack,       kPackSlices, kUnpackSlices,
                                  kPackStreams, kUnpackStreams};

std::string name_of(const Product& product) {
  return fmt::format("product {:.0f} x {:.0f} x {:.0f}", product.rows, product.columns,
                     product.depth);
}

Instruction make_instruction(Operation operation, Pass pass) {
  Instruction instruction;
  instruction.operation = operation;
  instruction.pass = pass;
  return instruction;
}

const std::array<Instruction, 9> kOperations = {
    make_instruction(Operation::embed, Pass::forward),
    make_instruction(Operation::attention_inputs, Pass::forward),
    make_instruction(Operation::attention_outputs, Pass::forward),
    make_instruction(Operation::loss, Pass::backward),
    make_instruction(Operation::attention_outputs, Pass::backward),
    make_instruction(Operation::begin_attention, Pass::backward),
    make_instruction(Operation::attention_inputs, Pass::backward),
    make_instruction(Operation::embed_gradient, Pass::backward),
    make_instruction(Operation::optimize, Pass::backward)};

/// Returns the numbers of rows over which products are measured.
std::vector<std::int64_t> row_counts(std::int64_t rows) {
  std::vector<std::int64_t> counts;
  for (std::int64_t count = rows; count >= kDocument; count /= 2) counts.push_back(count);
  if (counts.empty()) counts.push_back(rows);
  return counts;
}

/// Returns all products of the model's operations over `rows` tokens.
std::set<Product> products_of(const config::Experiment& experiment, std::int64_t rows) {
  const config::Experiment alone = one_rank(experiment, rows);
  const program::OperationShapes shapes(alone, program::Layout(alone));
  std::set<Product> products;
  for (const Instruction& instruction : kOperations) {
    const auto work = shapes.work(instruction, 0, rows);
    products.insert(work.products.begin(), work.products.end());
  }
  return products;
}

/// Returns the rows of the measured microbatches; the last one is for the check.
std::array<std::int64_t, 3> microbatch_rows(std::int64_t rows) {
  return {rows, std::max<std::int64_t>(2, rows / 4), std::max<std::int64_t>(2, rows / 2)};
}

/// Returns the rows of products for the check.
std::int64_t between(std::int64_t rows) {
  return std::max<std::int64_t>(2, rows * 3 / 8);
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
void Calibration<Real>::add_products() {
  std::vector<std::int64_t> counts = row_counts(rows_);
  counts.push_back(between(rows_));
  std::set<Product> products;
  for (const std::int64_t rows : counts) products.merge(products_of(experiment_, rows));
  for (const Product& product : products) {
    Rounds& rounds = product_rounds_[product];
    const auto run = [this, product, &rounds] {
      rounds.add(product_seconds<Real>(world_, product));
    };
    works_.push_back({name_of(product), run, {&rounds}});
  }
}

template <typename Real>
void Calibration<Real>::fit_products() {
  std::map<std::array<double, 3>, std::vector<double>> shapes;  // whatever is transposed
  for (const std::int64_t rows : row_counts(rows_)) {
    for (const Product& product : products_of(experiment_, rows)) {
      shapes[{product.rows, product.columns, product.depth}].push_back(
          product_rounds_.at(product).seconds());
    }
  }
  for (const auto& [shape, seconds] : shapes) {
    const Product product{{}, shape[0], shape[1], shape[2]};
    machine_.products.table.push_back(
        {shape[0], shape[1], shape[2], rounded(product.flops() / mean(seconds))});
  }
}

template <typename Real>
void Calibration<Real>::check_products() {
  cost::ProductTime times(machine_.products, sizeof(Real));
  for (const Product& product : products_of(experiment_, between(rows_))) {
    product_error_.add(name_of(product), times.seconds(product),
                       product_rounds_.at(product).seconds());
  }
}

template <typename Real>
void Calibration<Real>::add_operations() {
  for (const std::int64_t rows : microbatch_rows(rows_)) {
    std::vector<Rounds>& rounds = operation_rounds_[rows];
    if (!rounds.empty()) continue;  // so few rows that two sizes are one
    rounds.resize(kOperations.size());
    Work work{
        fmt::format("operations of {} rows", rows), [this, rows] { measure_operations(rows); }, {}};
    for (const Rounds& of : rounds) work.rounds.push_back(&of);
    works_.push_back(std::move(work));
  }
}

template <typename Real>
void Calibration<Real>::measure_operations(std::int64_t rows) {
  const auto self = comm::make_self();
  const std::vector<OperationTime> events =
      run_steps<Real>(world_, *self, one_rank(experiment_, rows), kSteps);
  std::vector<Rounds>& rounds = operation_rounds_.at(rows);
  for (std::size_t i = 0; i < kOperations.size(); ++i) {
    const std::string name(program::name(kOperations[i].operation));
    rounds[i].add(median_seconds(world_, events, name, program::phase_of(kOperations[i])));
  }
}

template <typename Real>
std::vector<OperationSample> Calibration<Real>::samples(std::int64_t rows) const {
  std::vector<OperationSample> samples;
  for (std::size_t i = 0; i < kOperations.size(); ++i) {
    samples.push_back({kOperations[i], rows, operation_rounds_.at(rows)[i].seconds()});
  }
  return samples;
}

template <typename Real>
void Calibration<Real>::fit_operations() {
  const auto [most, fewest, other] = microbatch_rows(rows_);
  std::vector<OperationSample> all = samples(most);
  for (const OperationSample& sample : samples(fewest)) all.push_back(sample);
  fit_element_wise(one_rank(experiment_, rows_), all, machine_);
  // This operation streams through memory and does little else.
  machine_.element_wise.bytes_per_second = machine_.element_wise.attention_delta;
}

template <typename Real>
void Calibration<Real>::check_operations() {
  const std::int64_t rows = microbatch_rows(rows_).back();
  const config::Experiment alone = one_rank(experiment_, rows);
  const simulate::Costs costs(machine_, alone, program::Layout(alone));
  for (const OperationSample& sample : samples(rows)) {
    const double predicted = costs.compute(sample.instruction, 0, rows);
    const std::string name =
        fmt::format("{} {} of {} rows", program::name(sample.instruction.operation),
                    sample.instruction.pass == Pass::forward ? "forward" : "backward", rows);
    operation_error_.add(name, predicted, sample.seconds);
  }
}

template <typename Real>
void Calibration<Real>::add_messages() {
  Work work{"messages", [this] { measure_messages(); }, {}};
  for (const char* name : kMessages) work.rounds.push_back(&message_rounds_[name]);
  works_.push_back(std::move(work));
}

template <typename Real>
void Calibration<Real>::measure_messages() {
  const auto add_rate = [this](const char* name, double bytes_per_second) {
    message_rounds_.at(name).add(kMessageBytes / bytes_per_second);
  };
  const config::Link link = measure_link(world_);
  message_rounds_.at(kLatency).add(link.latency_seconds);
  add_rate(kTransfer, link.bytes_per_second);
  add_rate(kGather, link.gather_bytes_per_second);
  add_rate(kSum, link.reduce_bytes_per_second);
  config::Experiment shared = one_rank(experiment_, rows_);
  shared.parallel.context = world_.size();
  shared.attention.placement = config::PlacementKind::all_gather;
  // Documents of common length: copies of many short runs of rows take longer than their bytes. And
  // so short that a rank's rows are copied (plan::travels_in_place), which is what is measured.
  const std::int64_t row = shared.model.kv_heads * shared.model.head_dim() * sizeof(Real);
  const std::int64_t most = (plan::kInPlaceBytes / row - 1) * world_.size();
  shared.data.lengths.median =
      static_cast<double>(std::clamp<std::int64_t>(std::min(rows_ / 8, most), 2, 2048));
  const std::vector<OperationTime> whole = run_steps<Real>(world_, world_, shared, kSteps);
  add_rate(kPack, bytes_per_second(world_, named(whole, "pack")));
  add_rate(kUnpack, bytes_per_second(world_, named(whole, "unpack")));
  config::Experiment staged = one_rank(experiment_, rows_);
  staged.parallel.pipeline = staged.model.layers = world_.size();
  const std::vector<OperationTime> streams = run_steps<Real>(world_, world_, staged, kSteps);
  add_rate(kPackStreams, bytes_per_second(world_, named(streams, "pack_stream")));
  add_rate(kUnpackStreams, bytes_per_second(world_, named(streams, "unpack_stream")));
  if (shared.model.kv_heads % world_.size() != 0) return;
  shared.attention.placement = config::PlacementKind::ulysses;
  const std::vector<OperationTime> sliced = run_steps<Real>(world_, world_, shared, kSteps);
  add_rate(kPackSlices, bytes_per_second(world_, every_other(named(sliced, "pack"), true)));
  add_rate(kUnpackSlices, bytes_per_second(world_, every_other(named(sliced, "unpack"), false)));
}

/// Returns the rate of a message; 0 if it was not measured.
template <typename Real>
double Calibration<Real>::message_rate(const std::string& name) const {
  const Rounds& rounds = message_rounds_.at(name);
  return rounds.empty() ? 0.0 : rounded(kMessageBytes / rounds.seconds());
}

template <typename Real>
void Calibration<Real>::fit_messages() {
  machine_.links.inside = {rounded(message_rounds_.at(kLatency).seconds()), message_rate(kTransfer),
                           message_rate(kGather), message_rate(kSum)};
  machine_.element_wise.copies = {message_rate(kPack), message_rate(kUnpack)};
  machine_.element_wise.slices = {message_rate(kPackSlices), message_rate(kUnpackSlices)};
  machine_.element_wise.streams = {message_rate(kPackStreams), message_rate(kUnpackStreams)};
}

#define CADENZA_INSTANTIATE(Real)                    \
  template void Calibration<Real>::add_products();   \
  template void Calibration<Real>::add_operations(); \
  template void Calibration<Real>::add_messages();   \
  template void Calibration<Real>::fit_products();   \
  template void Calibration<Real>::fit_operations(); \
  template void Calibration<Real>::fit_messages();   \
  template void Calibration<Real>::check_products(); \
  template void Calibration<Real>::check_operations();
CADENZA_INSTANTIATE(bfloat16)
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::app
