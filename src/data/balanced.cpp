// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/at.hpp"
#include "data/packing.hpp"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "cadenza/base/error.hpp"
#include "cadenza/config/limits.hpp"
#include "cadenza/data/batch.hpp"

namespace cadenza::data {
namespace {

// Distance of remembered states: a jump back replays fewer steps than this, about 50 us each.
constexpr std::int64_t kRemembered = 1024;

struct Bin {
  std::int64_t tokens = 0;
  double cost = 0;
};

template <typename Key>
std::size_t smallest(const std::vector<Bin>& bins, Key Bin::*key) {
  const auto least = std::min_element(bins.begin(), bins.end(),
                                      [&](const Bin& a, const Bin& b) { return a.*key < b.*key; });
  return static_cast<std::size_t>(least - bins.begin());
}

/// The bin with the most tokens, at most `room`; nothing where all have more.
std::optional<std::size_t> fullest(const std::vector<Bin>& bins, std::int64_t room) {
  std::optional<std::size_t> best;
  for (std::size_t bin = 0; bin < bins.size(); ++bin) {
    if (bins[bin].tokens > room) continue;
    if (!best || bins[bin].tokens > bins[*best].tokens) best = bin;
  }
  return best;
}

/// The bin that takes the least time with `cost` added.
std::size_t soonest(const std::vector<Bin>& bins, const std::vector<std::int64_t>& capacities,
                    double cost) {
  const auto time = [&](std::size_t bin) {
    return (bins[bin].cost + cost) / static_cast<double>(capacities[bin % capacities.size()]);
  };
  std::size_t best = 0;
  for (std::size_t bin = 1; bin < bins.size(); ++bin) {
    if (time(bin) < time(best)) best = bin;
  }
  return best;
}

std::int64_t total_tokens(const std::vector<Waiting>& documents) {
  std::int64_t total = 0;
  for (const Waiting& waiting : documents) total += waiting.document.length();
  return total;
}

}  // namespace

void check_step(std::size_t documents) {
  if (documents <= static_cast<std::size_t>(config::kMostStepDocuments)) return;
  fail(ExitCode::usage,
       "batch.tokens: found a step with more than {} documents; valid: fewer tokens, or longer "
       "documents",
       config::kMostStepDocuments);
}

std::vector<Microbatch> deal(std::vector<Waiting>& pool, const DealOptions& options,
                             std::int64_t step) {
  constexpr double kMostComparisons = 0x1p32;
  const double comparisons = static_cast<double>(pool.size()) * static_cast<double>(options.count);
  if (comparisons > kMostComparisons) {
    fail(ExitCode::usage,
         "batch.packing: found {} documents for {} microbatches in a step; valid: fixed, or "
         "documents x microbatches at most {:.3g}",
         pool.size(), options.count, kMostComparisons);
  }
  // Steps carried keep a document from waiting for ever behind costlier ones of new steps.
  const auto rank = [](const Waiting& w) {
    return std::tuple(!w.ahead, w.carried, w.document.length());
  };
  std::stable_sort(pool.begin(), pool.end(),
                   [&](const Waiting& a, const Waiting& b) { return rank(a) > rank(b); });
  std::vector<Microbatch> microbatches(static_cast<std::size_t>(options.count));
  std::vector<Bin> bins(microbatches.size());
  const auto cheapest_for = [&](double cost) {
    return options.capacities.empty() ? smallest(bins, &Bin::cost)
                                      : soonest(bins, options.capacities, cost);
  };
  const auto put = [&](const Waiting& waiting, std::size_t bin) {
    bins[bin].tokens += waiting.document.length();
    bins[bin].cost += options.cost(waiting.document.length());
    BatchDocument& placed = microbatches[bin].documents.emplace_back(waiting.document);
    placed.delay = step - waiting.read;
  };
  std::vector<Waiting> left;
  for (const Waiting& waiting : pool) {
    const std::int64_t room = options.longest - waiting.document.length();
    if (options.fill) {
      const std::optional<std::size_t> bin = fullest(bins, room);
      bin ? put(waiting, *bin) : left.push_back(waiting);
      continue;
    }
    const std::size_t cheapest = cheapest_for(options.cost(waiting.document.length()));
    const std::size_t shortest = smallest(bins, &Bin::tokens);
    if (bins[cheapest].tokens <= room) {
      put(waiting, cheapest);
    } else if (bins[shortest].tokens <= room) {
      put(waiting, shortest);
    } else {
      left.push_back(waiting);
    }
  }
  if (options.force) {
    for (const Waiting& waiting : std::exchange(left, {})) {
      put(waiting, cheapest_for(options.cost(waiting.document.length())));
    }
  }
  pool = std::move(left);
  return microbatches;
}

CarriedSteps::CarriedSteps(std::shared_ptr<const Stream> stream, std::int64_t tokens,
                           const DealOptions& options, std::vector<std::int64_t> outliers)
    : stream_(std::move(stream)),
      tokens_(tokens),
      deal_options_(options),
      outliers_(std::move(outliers)) {
  last_.queues.resize(outliers_.size());
  remembered_.emplace(0, last_);
}

Batch CarriedSteps::batch(std::int64_t step) {
  const std::lock_guard lock(mutex_);
  if (step < next_) {
    const auto nearest = std::prev(remembered_.upper_bound(step));
    next_ = nearest->first;
    last_ = nearest->second;
  }
  Batch batch;
  for (; next_ <= step; ++next_) {
    if (next_ % kRemembered == 0) remembered_.emplace(next_, last_);
    batch = advance(last_, next_);
  }
  return batch;
}

Batch CarriedSteps::advance(State& state, std::int64_t step) const {
  // A step reads less if documents were carried to it, as they would pile up where lengths do not
  // fill microbatches. If all documents that it reads wait in queues, it reads on.
  do {
    read_window(state, step);
    release_outliers(state);
  } while (state.carried.empty());
  if (deal_options_.fill) mark_later(state.carried, step);
  Batch batch{step, deal(state.carried, deal_options_, step)};
  for (Waiting& waiting : state.carried) waiting.carried += waiting.ahead ? 0 : 1;
  return batch;
}

void CarriedSteps::read_window(State& state, std::int64_t step) const {
  // Filling needs a choice of documents, all of them whole: it reads a step ahead.
  const bool fills = deal_options_.fill;
  std::int64_t room = (fills ? 2 : 1) * tokens_ - total_tokens(state.carried);
  if (room <= 0) return;
  Stream::Cursor cursor = stream_->cursor(state.position);
  while (room > 0) {
    const BatchDocument document = cursor.take(fills ? config::kMostTokens : room);
    const std::int64_t position = std::exchange(state.position, state.position + document.length());
    room -= document.length();
    const auto queue = std::lower_bound(outliers_.begin(), outliers_.end(), document.length());
    const auto above = static_cast<std::size_t>(queue - outliers_.begin());
    std::vector<Waiting>& waiting = above > 0 ? state.queues[above - 1] : state.carried;
    waiting.push_back({document, step, 0, position});
    check_step(waiting.size());
  }
}

/// Of documents in the order of the stream, those that `tokens_` cannot hold are of later steps.
/// They have not waited yet.
void CarriedSteps::mark_later(std::vector<Waiting>& waiting, std::int64_t step) const {
  std::ranges::sort(waiting, {}, &Waiting::position);
  std::int64_t tokens = 0;
  for (Waiting& document : waiting) {
    tokens += document.document.length();
    if (document.ahead) document.read = step;
    document.ahead = tokens > tokens_;
  }
}

void CarriedSteps::release_outliers(State& state) const {
  const auto count = static_cast<std::size_t>(deal_options_.count);
  for (std::vector<Waiting>& queue : state.queues) {
    const auto full = static_cast<std::ptrdiff_t>(queue.size() / count * count);
    state.carried.insert(state.carried.end(), queue.begin(), queue.begin() + full);
    queue.erase(queue.begin(), queue.begin() + full);
  }
}

CutCorpus::CutCorpus(std::unique_ptr<Corpus> whole, std::int64_t max_document,
                     std::int64_t documents)
    : whole_(std::move(whole)), max_document_(max_document) {
  first_.reserve(whole_->lengths().size());
  lengths_.reserve(at(documents));
  for (const std::int64_t length : whole_->lengths()) {
    first_.push_back(static_cast<std::int64_t>(lengths_.size()));
    for (std::int64_t begin = 0; begin < length; begin += max_document_) {
      lengths_.push_back(std::min(max_document_, length - begin));
    }
  }
}

CutCorpus::Piece CutCorpus::piece(std::int64_t document) const {
  const auto after = std::upper_bound(first_.begin(), first_.end(), document);
  return {after - first_.begin() - 1, (document - *std::prev(after)) * max_document_};
}

void CutCorpus::read(std::int64_t document, Range tokens, std::span<Token> out) const {
  const auto [whole, begin] = piece(document);
  whole_->read(whole, {begin + tokens.begin, begin + tokens.end}, out);
}

std::vector<Question> CutCorpus::questions(std::int64_t document) const {
  const auto [whole, begin] = piece(document);
  const std::int64_t length = lengths_[at(document)];
  return questions_within(whole_->questions(whole), {begin, begin + length});
}

namespace {

/// Checks the number of tokens and documents, before memory is taken for them. @return documents
std::int64_t check_size(std::span<const std::int64_t> lengths, std::int64_t max_document,
                        std::int64_t most) {
  std::int64_t tokens = 0;
  std::int64_t documents = 0;
  for (const std::int64_t length : lengths) {
    if (length < 1 || length > config::kMostTokens - tokens) {
      fail(ExitCode::data, "data: found a corpus of more than {} tokens; valid: fewer",
           config::kMostTokens);
    }
    tokens += length;
    documents += max_document > 0 ? (length - 1) / max_document + 1 : 1;
    if (documents > most) {
      fail(ExitCode::data,
           "data.max_document: found {}, which cuts the corpus into more than {} documents; valid: "
           "a larger value, or a smaller corpus",
           max_document, most);
    }
  }
  return documents;
}

}  // namespace

std::unique_ptr<Corpus> cut(std::unique_ptr<Corpus> corpus, std::int64_t max_document,
                            std::int64_t most) {
  const std::int64_t documents = check_size(corpus->lengths(), max_document, most);
  if (max_document <= 0 || std::ranges::max(corpus->lengths()) <= max_document) return corpus;
  return std::make_unique<CutCorpus>(std::move(corpus), max_document, documents);
}

}  // namespace cadenza::data
