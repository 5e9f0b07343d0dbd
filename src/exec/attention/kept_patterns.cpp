// SPDX-License-Identifier: Apache-2.0
#include "exec/attention/kept_patterns.hpp"

#include <algorithm>
#include <set>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"

namespace cadenza::exec {

void KeptPatterns::begin(std::vector<Tick> ticks, int heads) {
  ticks_ = std::move(ticks);
  heads_ = heads;
  first_.clear();
  mine_.clear();
  std::set<std::pair<std::vector<int>, std::int64_t>> seen;
  for (std::size_t tick = 0; tick < ticks_.size(); ++tick) {
    const std::vector<int>& layers = ticks_[tick].workload.layers;
    for (const IndexDocument& document : ticks_[tick].documents) {
      if (!seen.insert({layers, document.length}).second) continue;
      first_.emplace_back(static_cast<int>(tick), &document);
    }
  }
}

void KeptPatterns::note(int layer, int tick, const IndexDocument& document, std::int64_t head,
                        const SparsePattern& pattern) {
  if (ticks_.empty()) return;
  if (std::ranges::find(first_, std::pair{tick, &document}) == first_.end()) return;
  mine_[{layer, &document, head}] = pattern;
}

/// The rows of a head that one holder owns, as words in the message of all.
struct KeptPatterns::Part {
  int layer;
  const Tick* tick;
  const IndexDocument* document;
  std::int64_t head;
  Range tokens;
  Range words;
};

std::vector<KeptPatterns::Part> KeptPatterns::parts(int layers) const {
  std::vector<Part> all;
  std::int64_t words = 0;
  for (int layer = 0; layer < layers; ++layer) {
    for (const auto& [number, document] : first_) {
      const Tick& tick = ticks_[at(number)];
      for (std::size_t holder = 0; holder < document->parts.holders.size(); ++holder) {
        const plan::OwnedIndex owned = plan::owned_index(tick.workload, document->parts, holder);
        if (owned.empty()) continue;
        const std::int64_t size =
            tick.workload.sparse.pattern_words(document->length, owned.tokens);
        for (std::int64_t head = owned.heads.begin; head < owned.heads.end; ++head) {
          all.push_back({layer, &tick, document, head, owned.tokens, {words, words + size}});
          words += size;
        }
      }
    }
  }
  return all;
}

void KeptPatterns::share(comm::Communicator& pool, int layers) {
  const std::vector<Part> all = parts(layers);
  std::vector<std::uint64_t> words(all.empty() ? 0 : at(all.back().words.end), 0);
  const auto words_of = [&](const Part& part) {
    return std::span(words).subspan(at(part.words.begin), at(part.words.size()));
  };
  for (const Part& part : all) {
    if (part.document->owned.tokens != part.tokens) continue;
    const auto mine = mine_.find({part.layer, part.document, part.head});
    if (mine != mine_.end())
      part.tick->workload.sparse.pack(mine->second, part.tokens, words_of(part));
  }
  pool.all_reduce(std::span(words), comm::Reduction::sum);  // each word is one rank's
  kept_.clear();
  for (const Part& part : all) {
    const auto packed = words_of(part);
    // Another class of layers has this layer, or it is dense: a pattern has its diagonal at least.
    if (std::ranges::none_of(packed, [](std::uint64_t word) { return word != 0; })) continue;
    std::vector<SparsePattern>& patterns = kept_[{part.layer, part.document->length}];
    if (patterns.empty()) {
      patterns.assign(at(heads_), part.tick->workload.sparse.diagonal(part.document->length));
    }
    part.tick->workload.sparse.unpack(packed, part.tokens, patterns[at(part.head)]);
  }
  skip();
}

const SparsePattern& KeptPatterns::of(int layer, std::int64_t length, std::int64_t head) const {
  const auto found = kept_.find({layer, length});
  if (found == kept_.end()) {
    fail(ExitCode::internal, "no step has kept patterns of {} tokens in layer {}", length, layer);
  }
  return found->second[at(head)];
}

}  // namespace cadenza::exec
