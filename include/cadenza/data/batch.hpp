// SPDX-License-Identifier: Apache-2.0
// Packing: the documents of each step's microbatches, a pure function of lengths, options, step
// and seed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cadenza/base/range.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/data/corpus.hpp"

namespace cadenza::data {

/// A run of tokens of one corpus document that is a document of its own in the batch: positions
/// start at 0, attention stays inside, its last token has no target.
struct BatchDocument {
  std::int64_t corpus_document = 0;
  Range tokens;            ///< in tokens of the corpus document
  std::int64_t delay = 0;  ///< balanced: steps that it waited
  std::int64_t length() const { return tokens.size(); }
  friend bool operator==(const BatchDocument&, const BatchDocument&) = default;
};

struct Microbatch {
  std::vector<BatchDocument> documents;
  std::int64_t tokens() const;
};

/// All microbatches of a step; microbatch i belongs to data-parallel rank i mod parallel.data. Some
/// may be empty (balanced, pooled: fewer documents than microbatches), never all of them.
struct Batch {
  std::int64_t step = 0;
  std::vector<Microbatch> microbatches;
  std::int64_t tokens() const;
  std::int64_t targets() const;  ///< sum over documents of length - 1
  std::int64_t documents() const;
  std::vector<std::int64_t> lengths() const;  ///< of all documents, in order
};

class Stream;
class BalancedSteps;
struct Bins;

/// The corpus is one stream of documents, repeated when it ends; with shuffle each pass over it has
/// its own order, given by (seed, pass).
/// - `fixed`: step s takes tokens [s * batch.tokens, (s + 1) * batch.tokens) of it and cuts them
///   every batch.microbatch tokens. A document across a cut becomes two batch documents.
/// - `pooled`: the same tokens, documents cut at the step's edges alone, dealt to microbatches of
///   equal cost and unequal length.
/// - `balanced`: likewise, but no microbatch is longer than batch.longest x batch.microbatch: what
///   fits nowhere comes in a later step, as do outliers until every microbatch can have one. A step
///   reads batch.tokens less those carried to it, from where the last one stopped.
class Packer {
 public:
  /// Uses `data`, `batch`, `seed` and, for the break-even, `model`. Copies the lengths; `corpus`
  /// need not outlive the packer.
  /// @throws Error(data) when the corpus has no documents; Error(usage) where a document can never
  /// be packed.
  Packer(const Corpus& corpus, const config::Experiment& experiment);
  /// The batch.tokens / batch.microbatch (rounded up) microbatches of `step` (from 0), in any order
  /// of calls and from any thread. `fixed`: each holds batch.microbatch tokens, the last one of a
  /// step the rest. `balanced` replays earlier steps where calls do not ascend.
  Batch batch(std::int64_t step) const;

 private:
  config::Batch options_;
  std::shared_ptr<const Stream> stream_;
  std::shared_ptr<const Bins> bins_;         // balanced, pooled
  std::shared_ptr<BalancedSteps> balanced_;  // balanced; locks itself
};

/// Those of a document whose fact and answer both lie in a range of it, counted from its begin.
std::vector<Question> questions_within(std::vector<Question> questions, Range tokens);

/// Reads the tokens of `microbatch`, documents one after another.
std::vector<Token> read_tokens(const Corpus& corpus, const Microbatch& microbatch);

}  // namespace cadenza::data
