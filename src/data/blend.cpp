// SPDX-License-Identifier: Apache-2.0
#include "data/blend.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/config/limits.hpp"

namespace cadenza::data {
namespace {

std::vector<double> shares_of(const std::vector<double>& weights) {
  std::vector<double> shares = weights;
  const double largest = std::ranges::max(weights);  // their sum might overflow
  for (double& share : shares) share /= largest;
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  return shares;
}

double tokens_of(const Corpus& corpus) {
  const auto lengths = corpus.lengths();
  return static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}));
}

/// What a blend will be, about.
struct Size {
  double tokens = 0;  ///< until the corpus that lasts longest ends
  double documents = 0;
  std::size_t largest = 0;  ///< the corpus that gives most documents
};

Size size_of(const std::vector<std::unique_ptr<Corpus>>& corpora,
             const std::vector<double>& shares) {
  Size size;
  double all = 0, largest = 0;  // documents per token of the blend
  for (std::size_t i = 0; i < corpora.size(); ++i) {
    const double tokens = tokens_of(*corpora[i]);
    const double some = shares[i] * static_cast<double>(corpora[i]->lengths().size()) / tokens;
    size.tokens = std::max(size.tokens, tokens / shares[i]);
    all += some;
    if (some > largest) {
      largest = some;
      size.largest = i;
    }
  }
  size.documents = all * size.tokens;
  return size;
}

/// Refuses blends that would fill the memory, before it is taken.
void check_size(const Size& size, const Corpus& largest, const std::string& name, double weight,
                double share, std::int64_t most) {
  if (size.documents <= static_cast<double>(most) &&
      size.tokens <= static_cast<double>(config::kMostTokens)) {
    return;
  }
  fail(ExitCode::data,
       "data.weights: found {} for '{}', whose {} documents of {:.3g} tokens would be repeated "
       "{:.3g} times in a pass of {:.3g} documents and {:.3g} tokens, until every entry has been "
       "read; valid: weights nearer to the sizes of the entries, with at most {} documents",
       weight, name, largest.lengths().size(), tokens_of(largest),
       share * size.tokens / tokens_of(largest), size.documents, size.tokens, most);
}

}  // namespace

BlendCorpus::BlendCorpus(std::vector<std::unique_ptr<Corpus>> corpora,
                         const std::vector<std::string>& names, const std::vector<double>& weights,
                         std::int64_t most)
    : corpora_(std::move(corpora)) {
  const std::vector<double> shares = shares_of(weights);
  const Size size = size_of(corpora_, shares);
  const std::size_t i = size.largest;
  check_size(size, *corpora_[i], names[i], weights[i], shares[i], most);
  places_.reserve(static_cast<std::size_t>(size.documents) + corpora_.size());
  lengths_.reserve(places_.capacity());
  constexpr double kRounding = 1e-12;
  interleave(shares, size.tokens * (1 - kRounding));
}

/// Worst-case fair queueing (Bennett and Zhang, INFOCOM 1996): a corpus may give its next document
/// when what it has given is at most its share; of those that may, the one goes first whose share
/// reaches the end of its document first. Both are measured in tokens of the blend.
void BlendCorpus::interleave(const std::vector<double>& shares, double least) {
  struct Turn {
    double at;  ///< tokens of the blend
    std::int32_t corpus;
    bool operator>(const Turn& other) const {
      return at != other.at ? at > other.at : corpus > other.corpus;
    }
  };
  using Queue = std::priority_queue<Turn, std::vector<Turn>, std::greater<>>;
  struct Source {
    std::span<const std::int64_t> lengths;
    double scale;             ///< tokens of the blend for a token of this corpus
    std::int64_t tokens = 0;  ///< given
    std::size_t next = 0;     ///< document
    bool read = false;        ///< once
  };
  std::vector<Source> sources;
  Queue waiting, ready;  // by the begin and the end of the next document
  for (std::size_t i = 0; i < shares.size(); ++i) {
    sources.push_back({corpora_[i]->lengths(), 1 / shares[i]});
    waiting.push({0, static_cast<std::int32_t>(i)});
  }
  std::size_t unread = sources.size();
  std::int64_t total = 0;
  while (unread > 0 || static_cast<double>(total) < least) {
    while (!waiting.empty() && (waiting.top().at <= static_cast<double>(total) || ready.empty())) {
      const std::int32_t corpus = waiting.top().corpus;
      const Source& source = sources[at(corpus)];
      const std::int64_t end = source.tokens + source.lengths[source.next];
      ready.push({static_cast<double>(end) * source.scale, corpus});
      waiting.pop();
    }
    const std::int32_t corpus = ready.top().corpus;
    Source& source = sources[at(corpus)];
    const std::int64_t length = source.lengths[source.next];
    places_.push_back({corpus, static_cast<std::int32_t>(source.next)});
    lengths_.push_back(length);
    total += length;
    source.tokens += length;
    if (++source.next == source.lengths.size()) {
      source.next = 0;
      if (!std::exchange(source.read, true)) --unread;
    }
    waiting.push({static_cast<double>(source.tokens) * source.scale, corpus});
    ready.pop();
  }
}

void BlendCorpus::read(std::int64_t document, Range tokens, std::span<Token> out) const {
  const Place place = places_[at(document)];
  corpora_[at(place.corpus)]->read(place.document, tokens, out);
}

}  // namespace cadenza::data
