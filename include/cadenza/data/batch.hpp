// SPDX-License-Identifier: Apache-2.0
// Packing: the documents of each step's microbatches, a pure function of lengths, step and seed.
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
  Range tokens;  ///< in tokens of the corpus document
  std::int64_t length() const { return tokens.size(); }
  friend bool operator==(const BatchDocument&, const BatchDocument&) = default;
};

struct Microbatch {
  std::vector<BatchDocument> documents;
  std::int64_t tokens() const;
};

/// All microbatches of a step; microbatch i belongs to data-parallel rank i mod parallel.data.
struct Batch {
  std::int64_t step = 0;
  std::vector<Microbatch> microbatches;
  std::int64_t tokens() const;
  std::int64_t targets() const;  ///< sum over documents of length - 1
  std::int64_t documents() const;
  std::vector<std::int64_t> lengths() const;  ///< of all documents, in order
};

/// Packing `fixed`: the corpus is one stream of documents, repeated when it ends; step s takes
/// tokens [s * batch.tokens, (s + 1) * batch.tokens) of it and cuts them every batch.microbatch
/// tokens. A document across a cut becomes two batch documents.
/// With shuffle each pass over the corpus has its own order, given by (seed, pass).
class Packer {
 public:
  /// Copies the lengths; `corpus` need not outlive the packer.
  /// @throws Error(data) when the corpus has no documents.
  Packer(const Corpus& corpus, const config::Data& data, const config::Batch& batch,
         std::uint64_t seed);
  /// The microbatches of `step` (from 0), in any order of calls and from any thread; each holds
  /// batch.microbatch tokens, the last one of a step the rest of batch.tokens.
  Batch batch(std::int64_t step) const;

 private:
  struct Pass;    // the documents of one pass with prefix sums of their lengths
  struct Recent;  // shuffled passes in use
  class Cursor;   // a place in the stream
  std::shared_ptr<const Pass> pass(std::int64_t index) const;

  config::Batch options_;
  bool shuffle_;
  std::uint64_t seed_;
  std::shared_ptr<const Pass> file_order_;
  std::shared_ptr<Recent> recent_;
};

/// Reads the tokens of `microbatch`, documents one after another.
std::vector<Token> read_tokens(const Corpus& corpus, const Microbatch& microbatch);

}  // namespace cadenza::data
