// SPDX-License-Identifier: Apache-2.0
#include "app/planner/search/typical_step.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cadenza/cost/flops.hpp"

namespace cadenza::app {
namespace {

/// Pairs of a query and a key in the microbatch that has most.
double most_pairs(const data::Batch& batch) {
  double most = 0;
  for (const data::Microbatch& microbatch : batch.microbatches) {
    double pairs = 0;
    for (const data::BatchDocument& document : microbatch.documents) {
      pairs += std::pow(static_cast<double>(document.length()), 2);
    }
    most = std::max(most, pairs);
  }
  return most;
}

}  // namespace

TypicalStep::TypicalStep(const config::Experiment& given, const data::Corpus& corpus,
                         const config::Machine& machine)
    : corpus_(corpus), machine_(machine) {
  constexpr std::size_t kSteps = 15;
  const data::Packer packer(corpus, given);
  std::vector<data::Batch> batches;
  for (std::size_t step = 0; step < kSteps; ++step) {
    batches.push_back(packer.batch(static_cast<std::int64_t>(step)));
  }
  std::ranges::stable_sort(batches, {}, most_pairs);
  number_ = batches[kSteps / 2].step;
  tokens_ = static_cast<double>(batches[kSteps / 2].tokens());
}

PackedStep& TypicalStep::in_microbatches_of(const config::Experiment& candidate) {
  const auto known = packed_.find(candidate.batch.microbatch);
  if (known != packed_.end()) return known->second;
  data::Batch batch = data::Packer(corpus_, candidate).batch(number_);
  simulate::LeastTime least_time(batch, candidate, machine_);
  std::vector<double> attention = least_time.attention();
  const double flops =
      cost::model_flops(candidate.model, candidate.attention.mask(), batch.lengths());
  PackedStep packed{std::move(batch), std::move(least_time), std::move(attention), flops};
  return packed_.emplace(candidate.batch.microbatch, std::move(packed)).first->second;
}

}  // namespace cadenza::app
