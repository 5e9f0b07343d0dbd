// SPDX-License-Identifier: Apache-2.0
#include "data/stream.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <numeric>
#include <utility>

#include "cadenza/base/hash.hpp"
#include "cadenza/base/random.hpp"

namespace cadenza::data {
namespace {

constexpr std::uint64_t kShuffleStream = Hasher().add("data.shuffle").value();

// Fisher-Yates with counter-based draws: the same order on every rank and in every run.
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
  std::vector<std::int64_t> begins;  // stream position of each place; behind the last: the total

  std::int64_t size() const { return static_cast<std::int64_t>(begins.size()) - 1; }
  std::int64_t document(std::int64_t place) const {
    return order.empty() ? place : order[static_cast<std::size_t>(place)];
  }
  std::int64_t begin(std::int64_t place) const { return begins[static_cast<std::size_t>(place)]; }
  std::int64_t length(std::int64_t place) const { return begin(place + 1) - begin(place); }
};

/// The last two shuffled passes in use, for a step may lie on the border of two.
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
  Recent::Entry& entry = recent_->entries[static_cast<std::size_t>(index % 2)];
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

Stream::Cursor Stream::at(std::int64_t position) const {
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
