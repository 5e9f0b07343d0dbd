// SPDX-License-Identifier: Apache-2.0
#include "cadenza/cost/rates.hpp"

#include <fmt/format.h>

#include "cadenza/cost/product_time.hpp"
#include "cost/attention_time.hpp"
#include "cost/links.hpp"

namespace cadenza::cost {
namespace {

double copy_seconds(const config::ElementWise& rates, double config::CopyRates::*direction,
                    std::int64_t bytes, bool slices) {
  double rate = slices ? rates.slices.*direction : 0.0;
  if (rate == 0) rate = rates.copies.*direction;
  if (rate == 0) rate = rates.bytes_per_second;
  return static_cast<double>(bytes) / rate;
}

}  // namespace

struct Rates::Parts {
  config::Machine machine;
  AttentionTime attention;
  ProductTime products;
  Links links;
};

Rates::Rates(const config::Machine& machine, const config::Cluster& cluster, std::int64_t head_dim)
    : parts_(new Parts{machine, AttentionTime(machine.attention, head_dim),
                       ProductTime(machine.products), Links(machine, cluster)}) {}

Rates::Rates(Rates&&) noexcept = default;
Rates& Rates::operator=(Rates&&) noexcept = default;
Rates::~Rates() = default;

double Rates::launch_seconds() const {
  return parts_->machine.attention.launch_seconds;
}

double Rates::task_seconds(const Task& task, Pass pass) const {
  return parts_->attention.seconds(task, pass);
}

double Rates::sparse_pair(std::int64_t block, Pass pass) const {
  return parts_->attention.sparse_pair(block, pass);
}

double Rates::index_seconds(const IndexWork& work) const {
  const config::IndexRates& rates = parts_->machine.attention.index;
  return work.flops / rates.flops_per_second + work.scores / rates.scores_per_second +
         work.masses / rates.masses_per_second;
}

double Rates::product_seconds(const Product& product) const {
  return parts_->products.seconds(product);
}

double Rates::pack(std::int64_t bytes, bool slices) const {
  return copy_seconds(parts_->machine.element_wise, &config::CopyRates::pack, bytes, slices);
}

double Rates::unpack(std::int64_t bytes, bool slices) const {
  return copy_seconds(parts_->machine.element_wise, &config::CopyRates::unpack, bytes, slices);
}

Way Rates::way(Rank from, Rank to) const {
  return parts_->links.way(from, to);
}

int Rates::node_of(Rank rank) const {
  return parts_->links.node_of(rank);
}

int Rates::adapter_of(Rank rank) const {
  return parts_->links.adapter_of(rank);
}

double Rates::collective(Collective what, double bytes, std::span<const Rank> group) const {
  return parts_->links.collective(what, bytes, group);
}

std::vector<std::string> Rates::extrapolations() const {
  std::vector<std::string> lines = parts_->attention.extrapolations();
  for (std::string& line : parts_->products.extrapolations()) lines.push_back(std::move(line));
  return lines;
}

const config::Machine& Rates::machine() const {
  return parts_->machine;
}

Pool nominal_pool(std::int64_t head_dim) {
  return {Rates({}, {}, head_dim), {}};
}

std::string nominal_rates() {
  const config::Machine machine;
  return fmt::format("assumed {:.0f} GFLOP/s, {:.0f} GB/s: set cluster.machine",
                     machine.products.flops_per_second / 1e9,
                     machine.links.between.bytes_per_second / 1e9);
}

}  // namespace cadenza::cost
