// SPDX-License-Identifier: Apache-2.0
#include "app/planner/advise/documents.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "cadenza/base/at.hpp"
#include "cadenza/cost/flops.hpp"

namespace cadenza::app {
namespace {

constexpr int kSteps = 15;

/// Of the sequence with most pairs over the mean of all.
double imbalance_of(const data::Batch& batch, const cost::DocumentCost& cost) {
  double most = 0, all = 0;
  for (const data::Microbatch& microbatch : batch.microbatches) {
    double pairs = 0;
    for (const data::BatchDocument& document : microbatch.documents) {
      pairs += cost.pairs(document.length());
    }
    most = std::max(most, pairs);
    all += pairs / static_cast<double>(batch.microbatches.size());
  }
  return all > 0 ? most / all : 1;
}

/// Joins the first bins as long as they hold hardly any tokens.
void join_first(std::vector<LengthBin>& bins) {
  constexpr double kHardly = 1e-3;
  while (bins.size() > 1 && bins[0].tokens + bins[1].tokens < kHardly) {
    LengthBin& next = bins[1];
    next.from = bins[0].from;
    next.documents += bins[0].documents;
    next.tokens += bins[0].tokens;
    next.attention += bins[0].attention;
    bins.erase(bins.begin());
  }
}

/// @param lengths  ascending
std::vector<LengthBin> bins_of(const std::vector<std::int64_t>& lengths,
                               const cost::DocumentCost& cost) {
  const auto bin_of = [](std::int64_t length) {
    return std::bit_width(static_cast<std::uint64_t>(length)) - 1;
  };
  const int first = bin_of(lengths.front()), last = bin_of(lengths.back());
  std::vector<LengthBin> bins(at(last - first + 1));
  for (std::size_t i = 0; i < bins.size(); ++i) {
    bins[i].from = std::int64_t{1} << (first + static_cast<int>(i));
    bins[i].to = 2 * bins[i].from;
  }
  double tokens = 0, pairs = 0;
  for (const std::int64_t length : lengths) {
    LengthBin& bin = bins[at(bin_of(length) - first)];
    const double mine = cost.pairs(length);
    bin.documents += 1;
    bin.tokens += static_cast<double>(length);
    bin.attention += mine;
    tokens += static_cast<double>(length);
    pairs += mine;
  }
  for (LengthBin& bin : bins) {
    bin.documents /= static_cast<double>(lengths.size());
    bin.tokens /= tokens;
    bin.attention /= pairs;
  }
  join_first(bins);
  return bins;
}

}  // namespace

Documents documents_of(const config::Experiment& experiment, const data::Packer& packer) {
  const cost::DocumentCost cost(experiment);
  const config::Attention& attention = experiment.attention;
  Documents found;
  found.steps = kSteps;
  std::vector<std::int64_t> all;
  found.imbalance = 0;
  for (int step = 0; step < kSteps; ++step) {
    const data::Batch batch = packer.batch(step);
    const std::vector<std::int64_t> lengths = batch.lengths();
    found.imbalance += imbalance_of(batch, cost) / kSteps;
    found.model_flops += cost::model_flops(experiment.model, attention, lengths) / kSteps;
    const double forward =
        cost::attention_flops(experiment.model, attention, lengths, config::Recompute::none, true);
    found.attention_flops += 3 * forward / kSteps;  // as model_flops counts the backward pass
    found.tokens += static_cast<double>(batch.tokens()) / kSteps;
    all.insert(all.end(), lengths.begin(), lengths.end());
  }
  std::ranges::sort(all);
  const auto quantile = [&](double share) {
    return all[static_cast<std::size_t>(share * static_cast<double>(all.size() - 1))];
  };
  found.count = std::ssize(all);
  found.mean = std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
  found.median = quantile(0.5);
  found.percentile_99 = quantile(0.99);
  found.longest = all.back();
  found.bins = bins_of(all, cost);
  return found;
}

}  // namespace cadenza::app
