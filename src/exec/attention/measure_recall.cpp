// SPDX-License-Identifier: Apache-2.0
#include "exec/attention/measure_recall.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "cadenza/base/at.hpp"
#include "cadenza/base/hash.hpp"

namespace cadenza::exec {
namespace {

constexpr std::int64_t kClasses = std::ssize(Recall::kFrom);
/// e^(logit - largest) is counted in steps of 1 / kStep.
constexpr double kStep = static_cast<double>(std::int64_t{1} << 40);

/// Sums of e^(logit - largest) of a query, by class of distances.
struct Sums {
  std::array<std::int64_t, Recall::kFrom.size()> kept{}, all{};
};

std::int64_t words_for(std::int64_t bits) {
  return (bits + 63) / 64;
}

/// A document, its sampled queries, and what its patterns do for them. All ranks get the same.
struct Sample {
  const IndexDocument* document = nullptr;
  std::int64_t block = 1, blocks = 0;
  std::vector<std::int64_t> queries;  ///< positions in the text, ascending
  /// By head: [queries, blocks] bits of the active blocks, then [length] bits of the columns.
  std::vector<std::uint64_t> seen;
  /// By head: [blocks] the last row of blocks in which this block of keys is active; -1: none.
  std::vector<std::int64_t> last_rows;

  std::int64_t query_words() const { return words_for(blocks); }
  std::int64_t head_words() const {
    return std::ssize(queries) * query_words() + words_for(document->length);
  }
  std::uint64_t* of_query(std::int64_t head, std::size_t query) {
    return seen.data() + head * head_words() + static_cast<std::int64_t>(query) * query_words();
  }
  std::uint64_t* columns(std::int64_t head) { return of_query(head, queries.size()); }
  std::int64_t* last_row(std::int64_t head) { return last_rows.data() + head * blocks; }
};

void set_bit(std::uint64_t* words, std::int64_t number) {
  words[number / 64] |= std::uint64_t{1} << (number % 64);
}
bool bit(const std::uint64_t* words, std::int64_t number) {
  return (words[number / 64] >> (number % 64) & 1) != 0;
}

Sample choose_queries(const IndexDocument& document, std::int64_t block, int heads,
                      std::uint64_t seed) {
  Sample sample;
  sample.document = &document;
  sample.block = block;
  sample.blocks = (document.length + block - 1) / block;
  const std::int64_t count = std::min(kRecallQueries, document.length);
  for (std::int64_t i = 0; i < count; ++i) {
    const Range part{i * document.length / count, (i + 1) * document.length / count};
    const std::uint64_t random = Hasher().add(seed).add(static_cast<std::uint64_t>(i)).value();
    const auto place = static_cast<std::int64_t>(random % static_cast<std::uint64_t>(part.size()));
    sample.queries.push_back(part.begin + place);
  }
  sample.seen.assign(at(heads * sample.head_words()), 0);
  sample.last_rows.assign(at(heads * sample.blocks), -1);
  return sample;
}

/// Notes the rows of a pattern that this rank owns.
void note_pattern(Sample& sample, std::int64_t head, const SparsePattern& pattern) {
  const Range owned = sample.document->owned.tokens;
  for (std::size_t query = 0; query < sample.queries.size(); ++query) {
    if (!owned.contains({sample.queries[query], sample.queries[query] + 1})) continue;
    const std::int64_t row = sample.queries[query] / sample.block;
    for (std::int64_t column = 0; column <= row; ++column) {
      if (pattern.active(row, column)) set_bit(sample.of_query(head, query), column);
    }
  }
  if (owned.begin == 0) {
    for (const std::int64_t key : pattern.columns()) set_bit(sample.columns(head), key);
  }
  std::int64_t* last = sample.last_row(head);
  std::vector<std::int64_t> open;  // blocks of keys whose last row has not been found
  for (std::int64_t column = 0; column < sample.blocks; ++column) open.push_back(column);
  const std::int64_t end = (owned.end + sample.block - 1) / sample.block;
  for (std::int64_t row = end - 1; row >= owned.begin / sample.block && !open.empty(); --row) {
    std::erase_if(open, [&](std::int64_t column) {
      if (!pattern.active(row, column)) return false;
      last[column] = row;
      return true;
    });
  }
}

template <typename Real>
class Measurement {
 public:
  using Sum = Accumulator<Real>;

  Measurement(comm::Communicator& group, const RecallInputs<Real>& inputs)
      : group_(group), inputs_(inputs) {
    for (const IndexDocument* document : inputs.documents) {
      samples_.push_back(
          choose_queries(*document, inputs.workload.sparse.block, inputs.shape.heads, inputs.seed));
      queries_ += samples_.back().queries.size();
    }
    gather_queries();
    gather_patterns();
    gather_keys();
  }

  Recall measure() {
    Recall recall;
    for (std::int64_t head = 0; head < inputs_.shape.heads; ++head) {
      const std::vector<Sums> sums = attend(head);
      if (group_.rank() != 0) continue;
      for (const Sums& of_query : sums) add(of_query, recall);
      for (Sample& sample : samples_) count_unseen(sample, head, recall);
    }
    return recall;
  }

 private:
  /// Rotated queries, times 1 / sqrt(head_dim), from the ranks that have their rows.
  void gather_queries() {
    const AttentionShape& shape = inputs_.shape;
    const std::int64_t row_size = std::int64_t{shape.heads} * shape.head_dim;
    const Sum scale = Sum(1) / std::sqrt(static_cast<Sum>(shape.head_dim));
    rotated_.assign(queries_ * at(row_size), 0);
    Sum* to = rotated_.data();
    for (const Sample& sample : samples_) {
      for (const std::int64_t position : sample.queries) {
        for (const KeyRun& run : sample.document->runs) {
          const std::int64_t distance = position - run.text.first;
          const std::int64_t number = distance / run.text.step;
          if (distance < 0 || distance % run.text.step != 0 || number >= run.text.tokens.size()) {
            continue;
          }
          const std::int64_t token = run.text.tokens.begin + number;
          std::vector<Real> row;
          rotate_queries<Real>(inputs_.workload, sample.document->length, {token, token + 1},
                               inputs_.q + (run.row + number) * row_size, shape, inputs_.rotary,
                               row);
          std::ranges::transform(row, to, [&](Real x) { return static_cast<Sum>(x) * scale; });
        }
        to += row_size;
      }
    }
    group_.all_reduce(std::span(rotated_), comm::Reduction::sum);
  }

  void gather_patterns() {
    for (Sample& sample : samples_) {
      const plan::OwnedIndex& owned = sample.document->owned;
      if (!owned.empty()) {
        for (std::int64_t head = owned.heads.begin; head < owned.heads.end; ++head) {
          note_pattern(sample, head, inputs_.pattern_of(*sample.document, head));
        }
      }
      group_.all_reduce(std::span(sample.seen), comm::Reduction::sum);  // each bit is one rank's
      group_.all_reduce(std::span(sample.last_rows), comm::Reduction::max);
    }
  }

  void gather_keys() {
    std::int64_t rows = 0;
    for (const Sample& sample : samples_) {
      for (const KeyRun& run : sample.document->runs) {
        rows = std::max(rows, run.row + run.text.tokens.size());
      }
    }
    keys_ = on_host<Real>(inputs_.k,
                          rows * std::int64_t{inputs_.shape.kv_heads} * inputs_.shape.head_dim);
  }

  /// Returns the sums of a head, by query of all documents, over the keys of all ranks.
  std::vector<Sums> attend(std::int64_t head) {
    std::vector<std::vector<Sum>> logits;
    std::vector<double> largest(queries_, -std::numeric_limits<double>::infinity());
    std::size_t query = 0;
    for (const Sample& sample : samples_) {
      logits.push_back(logits_of(sample, query, head, std::span(largest).subspan(query)));
      query += sample.queries.size();
    }
    group_.all_reduce(std::span(largest), comm::Reduction::max);
    std::vector<Sums> sums(queries_);
    query = 0;
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      add_up(samples_[i], head, logits[i], std::span(largest).subspan(query),
             std::span(sums).subspan(query));
      query += samples_[i].queries.size();
    }
    group_.all_reduce(
        std::span(reinterpret_cast<std::int64_t*>(sums.data()), sums.size() * 2 * kClasses),
        comm::Reduction::sum);
    return sums;
  }

  /// Calls visit(index among the keys held, position in the text, row) for this rank's keys.
  template <typename Visit>
  static void for_each_key(const Sample& sample, Visit&& visit) {
    std::int64_t index = 0;
    for (const KeyRun& run : sample.document->runs) {
      for (std::int64_t i = 0; i < run.text.tokens.size(); ++i) {
        visit(index++, run.text.first + i * run.text.step, run.row + i);
      }
    }
  }

  /// Returns [keys held, queries]: this rank's part of QK^T; raises `largest` over visible keys.
  std::vector<Sum> logits_of(const Sample& sample, std::size_t first, std::int64_t head,
                             std::span<double> largest) const {
    const AttentionShape& shape = inputs_.shape;
    const auto count = sample.queries.size();
    // [head_dim, queries]: the queries of a key are computed side by side.
    std::vector<Sum> queries(at(shape.head_dim) * count);
    for (std::size_t i = 0; i < count; ++i) {
      const Sum* row =
          rotated_.data() + ((first + i) * at(shape.heads) + at(head)) * at(shape.head_dim);
      for (int d = 0; d < shape.head_dim; ++d) queries[at(d) * count + i] = row[d];
    }
    std::vector<Sum> logits(at(sample.document->keys) * count, 0);
    for_each_key(sample, [&](std::int64_t index, std::int64_t position, std::int64_t key_row) {
      Sum* to = logits.data() + at(index) * count;
      const Real* key =
          keys_.data() + (key_row * shape.kv_heads + head / shape.group()) * shape.head_dim;
      for (int d = 0; d < shape.head_dim; ++d) {
        const Sum element = static_cast<Sum>(key[d]);
        for (std::size_t i = 0; i < count; ++i) to[i] += element * queries[at(d) * count + i];
      }
      for (std::size_t i = 0; i < count; ++i) {
        if (position <= sample.queries[i]) {
          largest[i] = std::max(largest[i], static_cast<double>(to[i]));
        }
      }
    });
    return logits;
  }

  void add_up(Sample& sample, std::int64_t head, std::span<const Sum> logits,
              std::span<const double> largest, std::span<Sums> sums) const {
    const auto count = sample.queries.size();
    for_each_key(sample, [&](std::int64_t index, std::int64_t key, std::int64_t) {
      const bool column = bit(sample.columns(head), key);
      for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t distance = sample.queries[i] - key;
        if (distance < 0) continue;
        const double logit = static_cast<double>(logits[at(index) * count + i]);
        const auto part = std::llround(std::exp(logit - largest[i]) * kStep);
        const std::size_t of = Recall::class_of(distance);
        sums[i].all[of] += part;
        if (column || bit(sample.of_query(head, i), key / sample.block)) sums[i].kept[of] += part;
      }
    });
  }

  static void add(const Sums& query, Recall& recall) {
    std::int64_t whole = 0;
    for (const std::int64_t part : query.all) whole += part;
    const auto share = [&](std::int64_t part) {
      return std::llround(static_cast<double>(part) / static_cast<double>(whole) * Recall::kUnit);
    };
    for (std::size_t of = 0; of < recall.distances.size(); ++of) {
      recall.distances[of].kept += share(query.kept[of]);
      recall.distances[of].attention += share(query.all[of]);
    }
  }

  static void count_unseen(Sample& sample, std::int64_t head, Recall& recall) {
    const std::int64_t length = sample.document->length;
    for (std::size_t of = 0; of < recall.distances.size(); ++of) {
      const std::int64_t from = Recall::kFrom[of];
      Recall::Distance& to = recall.distances[of];
      for (std::int64_t key = 0; key + from < length; ++key) {
        const std::int64_t row = sample.last_row(head)[key / sample.block];
        const std::int64_t last_query = std::min((row + 1) * sample.block, length) - 1;
        const bool seen = bit(sample.columns(head), key) || (row >= 0 && last_query - key >= from);
        ++to.keys;
        if (!seen) ++to.unseen;
      }
    }
  }

  comm::Communicator& group_;
  const RecallInputs<Real>& inputs_;
  std::vector<Sample> samples_;
  std::size_t queries_ = 0;   ///< of all documents
  std::vector<Sum> rotated_;  ///< [queries, heads, head_dim]
  decltype(on_host<Real>(nullptr, 0)) keys_;
};

}  // namespace

template <typename Real>
Recall measure_recall(comm::Communicator& group, const RecallInputs<Real>& inputs) {
  if (inputs.documents.empty()) return {};
  return Measurement<Real>(group, inputs).measure();
}

#define CADENZA_INSTANTIATE(Real) \
  template Recall measure_recall<Real>(comm::Communicator&, const RecallInputs<Real>&);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::exec
