// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include "data/balanced.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/config/limits.hpp"
#include "cadenza/cost/flops.hpp"
#include "cadenza/data/batch.hpp"
#include "data/stream.hpp"

namespace cadenza::data {
namespace {

void check(const Corpus& corpus, const config::Batch& batch) {
  if (corpus.lengths().empty()) fail(ExitCode::data, "data: the corpus holds no documents");
  if (batch.tokens < 1 || batch.microbatch < 1) {
    fail(ExitCode::usage, "batch: found tokens {} and microbatch {}; valid: both at least 1",
         batch.tokens, batch.microbatch);
  }
  if (!std::is_sorted(batch.outliers.begin(), batch.outliers.end())) {
    fail(ExitCode::usage,
         "batch.outliers: found lengths that do not ascend; valid: ascending lengths");
  }
}

/// Of each data-parallel replica: that of the slowest of its ranks, which are numbered by pipeline
/// stage, replica, context and tensor rank (program::Layout). Empty: all ranks are alike.
std::vector<std::int64_t> replica_capacities(const config::Experiment& experiment) {
  if (experiment.attention.capacity.empty()) return {};
  const config::Parallel& parallel = experiment.parallel;
  std::vector<std::int64_t> given(static_cast<std::size_t>(parallel.trainers()),
                                  config::kFullCapacity);
  for (const auto& [rank, percent] : experiment.attention.capacity) {
    if (rank < static_cast<double>(given.size())) {
      given[static_cast<std::size_t>(rank)] = static_cast<std::int64_t>(percent);
    }
  }
  std::vector<std::int64_t> slowest(static_cast<std::size_t>(parallel.data),
                                    std::ranges::max(given));
  for (std::size_t rank = 0; rank < given.size(); ++rank) {
    const auto group = static_cast<std::size_t>(parallel.context * parallel.tensor);
    std::int64_t& least = slowest[rank / group % slowest.size()];
    least = std::min(least, given[rank]);
  }
  return slowest;
}

Bins make_bins(const config::Experiment& experiment) {
  const config::Batch& batch = experiment.batch;
  Bins bins;
  bins.count = (batch.tokens + batch.microbatch - 1) / batch.microbatch;
  const double longest = std::floor(batch.longest * static_cast<double>(batch.microbatch));
  bins.longest = static_cast<std::int64_t>(std::min(longest, 0x1p62));
  bins.break_even = batch.break_even > 0 ? static_cast<double>(batch.break_even)
                                         : cost::break_even(experiment.model);
  bins.mask = experiment.attention.mask();
  bins.capacities = replica_capacities(experiment);
  bins.force = batch.packing == config::Packing::pooled;
  return bins;
}

}  // namespace

Packer::Packer(const Corpus& corpus, const config::Experiment& experiment)
    : options_(experiment.batch) {
  check(corpus, options_);
  stream_ = std::make_shared<Stream>(corpus.lengths(), experiment.data.shuffle, experiment.seed);
  if (options_.packing == config::Packing::fixed) return;
  bins_ = std::make_shared<const Bins>(make_bins(experiment));
  if (options_.packing != config::Packing::balanced) return;
  const std::int64_t longest = std::ranges::max(corpus.lengths());
  if (std::min(longest, options_.tokens) > bins_->longest) {
    fail(ExitCode::usage,
         "batch.longest: found room for {} tokens in a microbatch, but a document of {}; valid: "
         "data.max_document of at most {}",
         bins_->longest, longest, bins_->longest);
  }
  balanced_ = std::make_shared<BalancedSteps>(stream_, options_.tokens, *bins_, options_.outliers);
}

Batch Packer::batch(std::int64_t step) const {
  if (step > config::kMostTokens / options_.tokens) {
    fail(ExitCode::usage, "--step: found {}; valid: at most {} with steps of {} tokens", step,
         config::kMostTokens / options_.tokens, options_.tokens);
  }
  if (balanced_) return balanced_->batch(step);
  Batch batch{step, {}};
  Stream::Cursor cursor = stream_->at(step * options_.tokens);
  if (bins_) {
    std::vector<Waiting> pool;
    for (std::int64_t room = options_.tokens; room > 0; room -= pool.back().document.length()) {
      pool.push_back({cursor.take(room), step, 0});
      check_step(pool.size());
    }
    batch.microbatches = deal(pool, *bins_, step);
    return batch;
  }
  std::size_t documents = 0;
  for (std::int64_t left = options_.tokens; left > 0;) {
    std::int64_t room = std::min(left, options_.microbatch);
    left -= room;
    Microbatch& microbatch = batch.microbatches.emplace_back();
    for (; room > 0; check_step(++documents)) {
      room -= microbatch.documents.emplace_back(cursor.take(room)).length();
    }
  }
  return batch;
}

}  // namespace cadenza::data
