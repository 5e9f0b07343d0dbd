// SPDX-License-Identifier: Apache-2.0
#include "data/held_out.hpp"

#include <algorithm>
#include <ranges>
#include <utility>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/hash.hpp"
#include "cadenza/base/random.hpp"

namespace cadenza::data {
namespace {

constexpr std::uint64_t kHeldOut = Hasher().add("data.validation").value();

bool is_held_out(std::int64_t document, double share) {
  return random_uniform(0, kHeldOut, static_cast<std::uint64_t>(document)) < share;
}

}  // namespace

PartCorpus::PartCorpus(std::unique_ptr<Corpus> whole, double share, Part part)
    : whole_(std::move(whole)), part_(part) {
  const std::span<const std::int64_t> all = whole_->lengths();
  for (std::int64_t document = 0; document < std::ssize(all); ++document) {
    const bool held_out = is_held_out(document, share);
    if (held_out) held_out_.push_back(document);
    if (held_out == (part == Part::validation)) lengths_.push_back(all[at(document)]);
  }
  if (!held_out_.empty() && std::ssize(held_out_) < std::ssize(all)) return;
  fail(ExitCode::data,
       "data.validation: found a share of {}, which holds out {} of {} documents; valid: another "
       "share, or files",
       share, held_out_.size(), all.size());
}

/// The i-th document that is not held out comes after as many others as have fewer kept ones before
/// them.
std::int64_t PartCorpus::in_whole(std::int64_t document) const {
  if (part_ == Part::validation) return held_out_[at(document)];
  const auto indexes = std::views::iota(std::int64_t{0}, std::ssize(held_out_));
  const auto after = std::ranges::partition_point(
      indexes, [&](std::int64_t i) { return held_out_[at(i)] - i <= document; });
  return document + (after - indexes.begin());
}

void PartCorpus::read(std::int64_t document, Range tokens, std::span<Token> out) const {
  whole_->read(in_whole(document), tokens, out);
}

std::vector<Question> PartCorpus::questions(std::int64_t document) const {
  return whole_->questions(in_whole(document));
}

JoinedCorpus::JoinedCorpus(std::vector<std::unique_ptr<Corpus>> corpora)
    : corpora_(std::move(corpora)) {
  for (const std::unique_ptr<Corpus>& corpus : corpora_) {
    first_.push_back(std::ssize(lengths_));
    const std::span<const std::int64_t> lengths = corpus->lengths();
    lengths_.insert(lengths_.end(), lengths.begin(), lengths.end());
  }
}

void JoinedCorpus::read(std::int64_t document, Range tokens, std::span<Token> out) const {
  const auto after = std::ranges::upper_bound(first_, document);
  const auto corpus = static_cast<std::size_t>(after - first_.begin() - 1);
  corpora_[corpus]->read(document - first_[corpus], tokens, out);
}

}  // namespace cadenza::data
