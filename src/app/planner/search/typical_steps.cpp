// SPDX-License-Identifier: Apache-2.0
#include "app/planner/search/typical_steps.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

#include "cadenza/cost/flops.hpp"

namespace cadenza::app {
namespace {

constexpr std::size_t kSteps = 15;
/// Times the pairs of the light kind of steps: the heavy one is another kind.
constexpr double kHeavy = 2;

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

/// Sum of the squares of what numbers are off their mean.
double scatter(std::span<const double> numbers) {
  double sum = 0, squares = 0;
  for (const double number : numbers) sum += number, squares += number * number;
  return squares - sum * sum / static_cast<double>(numbers.size());
}

/// Where to part ascending numbers so that both parts scatter least.
std::size_t natural_break(std::span<const double> numbers) {
  std::size_t place = 1;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 1; i < numbers.size(); ++i) {
    const double both = scatter(numbers.first(i)) + scatter(numbers.subspan(i));
    if (both < least) least = both, place = i;
  }
  return place;
}

}  // namespace

TypicalSteps::TypicalSteps(const config::Experiment& given, const data::Corpus& corpus,
                           const config::Machine& machine)
    : corpus_(corpus), machine_(machine) {
  const data::Packer packer(corpus, given);
  std::vector<data::Batch> batches;
  for (std::size_t step = 0; step < kSteps; ++step) {
    batches.push_back(packer.batch(static_cast<std::int64_t>(step)));
  }
  std::ranges::stable_sort(batches, {}, most_pairs);
  std::vector<double> pairs;
  std::ranges::transform(batches, std::back_inserter(pairs), most_pairs);
  const auto add = [&](std::size_t from, std::size_t to) {
    const double share = static_cast<double>(to - from) / kSteps;
    const data::Batch& middle = batches[from + (to - from) / 2];
    numbers_.push_back({middle.step, share});
    tokens_ += share * static_cast<double>(middle.tokens());
  };
  const std::size_t heavy = natural_break(pairs);
  if (pairs[heavy + (kSteps - heavy) / 2] > kHeavy * pairs[heavy / 2]) {
    add(0, heavy);
    add(heavy, kSteps);
  } else {
    add(0, kSteps);
  }
}

std::vector<PackedStep>& TypicalSteps::in_microbatches_of(const config::Experiment& candidate) {
  const auto known = packed_.find(candidate.batch.microbatch);
  if (known != packed_.end()) return known->second;
  std::vector<PackedStep>& steps = packed_[candidate.batch.microbatch];
  for (const Number& number : numbers_) {
    data::Batch batch = data::Packer(corpus_, candidate).batch(number.step);
    simulate::LeastTime least_time(batch, candidate, machine_);
    std::vector<double> attention = least_time.attention();
    const double flops = cost::model_flops(candidate.model, candidate.attention, batch.lengths());
    steps.push_back(
        {number.share, std::move(batch), std::move(least_time), std::move(attention), flops});
  }
  return steps;
}

}  // namespace cadenza::app
