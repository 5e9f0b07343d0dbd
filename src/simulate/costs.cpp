// SPDX-License-Identifier: Apache-2.0
#include "cadenza/simulate/costs.hpp"

#include "attention_time.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/program/operation_work.hpp"
#include "cadenza/simulate/element_wise_rate.hpp"
#include "cadenza/simulate/product_time.hpp"
#include "links.hpp"

namespace cadenza::simulate {
namespace {

double copy_seconds(const config::ElementWise& rates, double config::CopyRates::*direction,
                    std::int64_t bytes, bool slices) {
  double rate = slices ? rates.slices.*direction : 0.0;
  if (rate == 0) rate = rates.copies.*direction;
  if (rate == 0) rate = rates.bytes_per_second;
  return static_cast<double>(bytes) / rate;
}

}  // namespace

struct Costs::Parts {
  config::Machine machine;
  AttentionTime attention;
  ProductTime products;
  program::OperationShapes shapes;
  Links links;
};

Costs::Costs(const config::Machine& machine, const config::Experiment& experiment,
             const program::Layout& layout)
    : parts_(new Parts{machine, AttentionTime(machine.attention, experiment.model.head_dim()),
                       ProductTime(machine.products), program::OperationShapes(experiment, layout),
                       Links(machine, experiment.cluster)}) {
  if (experiment.cluster.machine.empty() || machine.dtype == experiment.run.dtype) return;
  fail(ExitCode::usage,
       "cluster.machine: found {}, measured in {}; valid: a machine "
       "measured in run.dtype = {}",
       experiment.cluster.machine, config::word_of(machine.dtype),
       config::word_of(experiment.run.dtype));
}

Costs::Costs(Costs&&) noexcept = default;
Costs& Costs::operator=(Costs&&) noexcept = default;
Costs::~Costs() = default;

double Costs::attend(std::span<const plan::PlacedTask* const> tasks, program::Pass pass) const {
  return parts_->attention.seconds(tasks, pass);
}

double Costs::compute(const program::Step& step, Rank rank, std::int64_t rows) const {
  const program::OperationWork work = parts_->shapes.work(step, rank, rows);
  double seconds = work.bytes / element_wise_rate(parts_->machine.element_wise, step);
  for (const program::Product& product : work.products)
    seconds += parts_->products.seconds(product);
  return seconds;
}

double Costs::pack(std::int64_t bytes, bool slices) const {
  return copy_seconds(parts_->machine.element_wise, &config::CopyRates::pack, bytes, slices);
}

double Costs::unpack(std::int64_t bytes, bool slices) const {
  return copy_seconds(parts_->machine.element_wise, &config::CopyRates::unpack, bytes, slices);
}

Way Costs::way(Rank from, Rank to) const {
  return parts_->links.way(from, to);
}

int Costs::node_of(Rank rank) const {
  return parts_->links.node_of(rank);
}

int Costs::adapter_of(Rank rank) const {
  return parts_->links.adapter_of(rank);
}

double Costs::collective(Collective what, double bytes, std::span<const Rank> group) const {
  return parts_->links.collective(what, bytes, group);
}

std::vector<std::string> Costs::extrapolations() const {
  std::vector<std::string> lines = parts_->attention.extrapolations();
  for (std::string& line : parts_->products.extrapolations()) lines.push_back(std::move(line));
  return lines;
}

const config::Machine& Costs::machine() const {
  return parts_->machine;
}

}  // namespace cadenza::simulate
