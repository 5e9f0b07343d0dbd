// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <numeric>
#include <utility>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/hash.hpp"
#include "cadenza/base/random.hpp"
#include "cadenza/config/limits.hpp"
#include "cadenza/cost/flops.hpp"
#include "cadenza/data/batch.hpp"
#include "data/packing.hpp"

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

/// Capacities by data-parallel replica, each that of its slowest rank; empty where all ranks are
/// equal. Ranks are numbered by pipeline stage, replica, context and tensor rank (program::Layout).
std::vector<std::int64_t> replica_capacities(const config::Experiment& experiment) {
  const config::Parallel& parallel = experiment.parallel;
  const std::vector<std::int64_t> given = experiment.attention.capacities(parallel.trainers());
  if (given.empty()) return {};
  std::vector<std::int64_t> slowest(static_cast<std::size_t>(parallel.data),
                                    std::ranges::max(given));
  for (std::size_t rank = 0; rank < given.size(); ++rank) {
    const auto group = static_cast<std::size_t>(parallel.context * parallel.tensor);
    std::int64_t& least = slowest[rank / group % slowest.size()];
    least = std::min(least, given[rank]);
  }
  return slowest;
}

DealOptions make_deal_options(const config::Experiment& experiment) {
  const config::Batch& batch = experiment.batch;
  DealOptions options;
  options.count = (batch.tokens + batch.microbatch - 1) / batch.microbatch;
  options.fill = batch.packing == config::Packing::best_fit;
  const double most = options.fill ? 1.0 : batch.longest;
  const double longest = std::floor(most * static_cast<double>(batch.microbatch));
  options.longest = static_cast<std::int64_t>(std::min(longest, 0x1p62));
  options.cost = cost::DocumentCost(experiment);
  options.capacities = replica_capacities(experiment);
  options.force = batch.packing == config::Packing::pooled;
  return options;
}

/// Packing best_fit: documents stay whole, and all microbatches are equally long.
void require_room(std::int64_t longest, const config::Batch& batch) {
  if (longest > batch.microbatch) {
    fail(ExitCode::usage,
         "data.max_document: found a document of {} tokens with packing best_fit and "
         "batch.microbatch "
         "{}; valid: data.max_document of at most {}",
         longest, batch.microbatch, batch.microbatch);
  }
  if (batch.tokens % batch.microbatch != 0) {
    fail(ExitCode::usage,
         "batch.tokens: found {} with packing best_fit; valid: a multiple of batch.microbatch = {}",
         batch.tokens, batch.microbatch);
  }
}

}  // namespace

Packer::Packer(const Corpus& corpus, const config::Experiment& experiment)
    : options_(experiment.batch) {
  check(corpus, options_);
  stream_ = std::make_shared<Stream>(corpus.lengths(), experiment.data.shuffle, experiment.seed);
  if (options_.packing == config::Packing::fixed) return;
  deal_options_ = std::make_shared<const DealOptions>(make_deal_options(experiment));
  if (deal_options_->force) return;
  const std::int64_t longest = std::ranges::max(corpus.lengths());
  if (deal_options_->fill) {
    require_room(longest, options_);
  } else if (std::min(longest, options_.tokens) > deal_options_->longest) {
    fail(ExitCode::usage,
         "batch.longest: found room for {} tokens in a microbatch, but a document of {}; valid: "
         "data.max_document of at most {}",
         deal_options_->longest, longest, deal_options_->longest);
  }
  carried_ =
      std::make_shared<CarriedSteps>(stream_, options_.tokens, *deal_options_, options_.outliers);
}

Batch Packer::batch(std::int64_t step) const {
  if (step > config::kMostTokens / options_.tokens) {
    fail(ExitCode::usage, "--step: found {}; valid: at most {} with steps of {} tokens", step,
         config::kMostTokens / options_.tokens, options_.tokens);
  }
  if (carried_) return carried_->batch(step);
  Batch batch{step, {}};
  Stream::Cursor cursor = stream_->cursor(step * options_.tokens);
  if (deal_options_) {
    std::vector<Waiting> pool;
    for (std::int64_t room = options_.tokens; room > 0; room -= pool.back().document.length()) {
      pool.push_back({cursor.take(room), step, 0});
      check_step(pool.size());
    }
    batch.microbatches = deal(pool, *deal_options_, step);
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

namespace {

constexpr std::uint64_t kShuffleStream = Hasher().add("data.shuffle").value();

// Shuffles (Fisher-Yates) with counter-based draws: the same order on every rank and in every run.
std::vector<std::int64_t> shuffled(std::size_t documents, std::uint64_t seed, std::int64_t pass) {
  std::vector<std::int64_t> order(documents);
  std::iota(order.begin(), order.end(), 0);
  const std::uint64_t stream = kShuffleStream ^ mix64(static_cast<std::uint64_t>(pass));
  for (std::size_t i = documents; i > 1; --i) {
    std::swap(order[i - 1], order[random_bits(seed, stream, i) % i]);
  }
  return order;
}

}  // namespace

/// One pass over the corpus.
struct Stream::Pass {
  std::vector<std::int64_t> order;   // corpus document of each place; empty: file order
  std::vector<std::int64_t> begins;  // stream position of each place, and the total

  std::int64_t size() const { return static_cast<std::int64_t>(begins.size()) - 1; }
  std::int64_t document(std::int64_t place) const {
    return order.empty() ? place : order[at(place)];
  }
  std::int64_t begin(std::int64_t place) const { return begins[at(place)]; }
  std::int64_t length(std::int64_t place) const { return begin(place + 1) - begin(place); }
};

/// The last two shuffled passes in use, as a step may span two.
struct Stream::Recent {
  struct Entry {
    std::int64_t index = -1;
    std::shared_ptr<const Pass> pass;
  };
  std::mutex mutex;
  std::array<Entry, 2> entries;
};

Stream::Stream(std::span<const std::int64_t> lengths, bool shuffle, std::uint64_t seed)
    : shuffle_(shuffle), seed_(seed), recent_(std::make_shared<Recent>()) {
  auto pass = std::make_shared<Pass>();
  pass->begins.reserve(lengths.size() + 1);
  pass->begins.push_back(0);
  for (const std::int64_t length : lengths) pass->begins.push_back(pass->begins.back() + length);
  file_order_ = std::move(pass);
}

std::shared_ptr<const Stream::Pass> Stream::pass(std::int64_t index) const {
  if (!shuffle_) return file_order_;
  const std::lock_guard lock(recent_->mutex);
  Recent::Entry& entry = recent_->entries[at(index % 2)];
  if (entry.index == index) return entry.pass;

  auto pass = std::make_shared<Pass>();
  pass->order = shuffled(static_cast<std::size_t>(file_order_->size()), seed_, index);
  pass->begins.reserve(file_order_->begins.size());
  pass->begins.push_back(0);
  for (const std::int64_t document : pass->order) {
    pass->begins.push_back(pass->begins.back() + file_order_->length(document));
  }
  entry = {index, std::move(pass)};
  return entry.pass;
}

Stream::Cursor Stream::cursor(std::int64_t position) const {
  return {*this, position};
}

Stream::Cursor::Cursor(const Stream& stream, std::int64_t position)
    : stream_(stream),
      index_(position / stream.file_order_->begins.back()),
      pass_(stream.pass(index_)) {
  const std::vector<std::int64_t>& begins = pass_->begins;
  const std::int64_t within = position % begins.back();
  place_ = std::upper_bound(begins.begin(), begins.end(), within) - begins.begin() - 1;
  offset_ = within - pass_->begin(place_);
}

BatchDocument Stream::Cursor::take(std::int64_t room) {
  const std::int64_t length = pass_->length(place_);
  const std::int64_t end = std::min(length, offset_ + room);
  const BatchDocument taken{pass_->document(place_), {offset_, end}};
  offset_ = end;
  if (end == length) next_document();
  return taken;
}

void Stream::Cursor::next_document() {
  offset_ = 0;
  if (++place_ < pass_->size()) return;
  place_ = 0;
  pass_ = stream_.pass(++index_);
}

}  // namespace cadenza::data
