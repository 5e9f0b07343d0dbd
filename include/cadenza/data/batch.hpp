// SPDX-License-Identifier: Apache-2.0
// Packing: chooses the documents of each step's microbatches, as a pure function of lengths,
// options, step and seed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cadenza/base/range.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/data/corpus.hpp"

namespace cadenza::data {

/// A document of the batch: a range of one corpus document. Its positions start at 0, attention
/// stays inside, and its last token has no target.
struct BatchDocument {
  std::int64_t corpus_document = 0;
  Range tokens;            ///< tokens of the corpus document
  std::int64_t delay = 0;  ///< balanced, best_fit: steps that it waited
  bool scored = true;      ///< its tokens have targets; not where evaluation reads it once more
  std::int64_t length() const { return tokens.size(); }
  friend bool operator==(const BatchDocument&, const BatchDocument&) = default;
};

struct Microbatch {
  std::vector<BatchDocument> documents;
  std::int64_t tokens() const;
};

/// All microbatches of a step; microbatch i belongs to data-parallel rank i mod parallel.data. Some
/// but not all may be empty (balanced, pooled: fewer documents than microbatches).
struct Batch {
  std::int64_t step = 0;
  std::vector<Microbatch> microbatches;
  std::int64_t tokens() const;
  std::int64_t targets() const;  ///< sum over scored documents of length - 1
  std::int64_t documents() const;
  /// The number among the step's documents of the first one of `microbatch`, which is one of
  /// `microbatches`.
  std::int64_t first_document(const Microbatch& microbatch) const;
  std::vector<std::int64_t> lengths() const;  ///< lengths of all documents, in order
};

class Stream;
class CarriedSteps;
struct DealOptions;

/// Packs the steps of a run. The corpus is one stream of documents, repeated when it ends; with
/// shuffle each pass over it has its own order, given by (seed, pass).
/// - `fixed`: step s takes tokens [s * batch.tokens, (s + 1) * batch.tokens) of the stream and cuts
///   them every batch.microbatch tokens. A document across a cut becomes two batch documents.
/// - `pooled`: takes the same tokens, cuts documents only at the step's edges, and deals them to
///   microbatches of equal cost and unequal length.
/// - `balanced`: deals like `pooled`, but no microbatch is longer than batch.longest x
///   batch.microbatch. Documents that fit nowhere wait for a later step; outliers wait until every
///   microbatch can have one. A step continues reading where the last one stopped, and reads
///   batch.tokens less those carried to it.
/// - `best_fit`: cuts no document. Microbatches have at most batch.microbatch tokens; documents,
///   the longest of the step first, go to the fullest microbatch that has room, and what room is
///   left is given to documents of the next step.
class Packer {
 public:
  /// Uses `data`, `batch`, `seed` and, for the break-even, `model`. Copies the lengths, so `corpus`
  /// need not outlive the packer.
  /// @throws Error(data) when the corpus has no documents; Error(usage) where a document can never
  /// be packed.
  Packer(const Corpus& corpus, const config::Experiment& experiment);
  /// The batch.tokens / batch.microbatch (rounded up) microbatches of `step` (from 0). Thread-safe;
  /// calls may come in any order, but `balanced` and `best_fit` replay earlier steps where they do
  /// not ascend.
  /// `fixed`: each holds batch.microbatch tokens, the last one of a step the rest.
  Batch batch(std::int64_t step) const;

 private:
  config::Batch options_;
  std::shared_ptr<const Stream> stream_;
  std::shared_ptr<const DealOptions> deal_options_;  // all but fixed
  std::shared_ptr<CarriedSteps> carried_;            // balanced, best_fit; locks itself
};

/// The questions of a document whose fact and answer both lie in `tokens`, with places counted from
/// the begin of that range.
std::vector<Question> questions_within(std::vector<Question> questions, Range tokens);

/// Reads the tokens of `microbatch`, one document after another.
std::vector<Token> read_tokens(const Corpus& corpus, const Microbatch& microbatch);

}  // namespace cadenza::data
