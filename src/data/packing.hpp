// SPDX-License-Identifier: Apache-2.0
// From documents to microbatches: cuts long documents (data.max_document), reads the corpus as an
// endless stream, and packs microbatches to equal length or equal cost.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cadenza/cost/flops.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/data/corpus.hpp"

namespace cadenza::data {

/// A corpus in which every document is cut into consecutive documents of `max_document` tokens, the
/// last one shorter. No token is lost.
class CutCorpus : public Corpus {
 public:
  /// @param documents  how many there will be
  CutCorpus(std::unique_ptr<Corpus> whole, std::int64_t max_document, std::int64_t documents);
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  void read(std::int64_t document, Range tokens, std::span<Token> out) const override;
  std::vector<Question> questions(std::int64_t document) const override;

 private:
  struct Piece {
    std::int64_t document;  ///< document of the whole corpus
    std::int64_t begin;     ///< first token in that document
  };
  Piece piece(std::int64_t document) const;

  std::unique_ptr<Corpus> whole_;
  std::int64_t max_document_;
  std::vector<std::int64_t> lengths_;
  std::vector<std::int64_t> first_;  // first piece of each whole document
};

/// Returns `corpus` itself where no document is longer than `max_document` (or that is 0, which no
/// experiment has that was read), else a CutCorpus. @throws Error(data) where that has more than
/// `most` documents
std::unique_ptr<Corpus> cut(std::unique_ptr<Corpus> corpus, std::int64_t max_document,
                            std::int64_t most);

// --- Packing by cost ---
// Microbatches have different lengths, such that attention and linear layers together take equally
// long (WLB-LLM, arXiv 2503.17924; its form without queues: DistCA, arXiv 2510.18121).

/// A document that is in no microbatch yet.
struct Waiting {
  BatchDocument document;
  std::int64_t read = 0;      ///< the step whose tokens it belongs to
  std::int64_t carried = 0;   ///< steps in which no microbatch had room for it
  std::int64_t position = 0;  ///< of its first token in the stream
  bool ahead = false;         ///< best_fit: of a later step, for the room that others leave
};

/// Refuses steps of so many tiny documents that they would fill the memory.
/// @throws Error(usage) above config::kMostStepDocuments
void check_step(std::size_t documents);

struct DealOptions {
  std::int64_t count = 1;    ///< number of microbatches
  std::int64_t longest = 0;  ///< largest tokens of a microbatch
  cost::DocumentCost cost = {};
  bool force = false;  ///< documents that fit nowhere go to the cheapest microbatch anyway
  bool fill = false;   ///< each goes to the fullest microbatch that has room, whatever it costs
  /// By data-parallel replica: relative cost that it computes in equal time; empty: all are equal.
  /// Replica i mod their number computes microbatch i.
  std::vector<std::int64_t> capacities = {};
};

/// Deals documents to microbatches, those of later steps last, in order of steps carried, then of
/// length, longest first. Each goes to the cheapest microbatch if that has room, else to the
/// shortest if that has. With `capacities` the cheapest is the one that takes the least time with
/// the document.
/// @param pool  the documents; keeps those that fit nowhere (none with `force`)
/// @throws Error(usage) where documents x microbatches are too many comparisons
std::vector<Microbatch> deal(std::vector<Waiting>& pool, const DealOptions& options,
                             std::int64_t step);

/// Packing `balanced` and `best_fit`. As documents that fit nowhere or wait in a queue come in a
/// later step, a step depends on all earlier ones: it is found by replaying them from the nearest
/// remembered one.
class CarriedSteps {
 public:
  /// @param tokens  tokens of a step, those carried to it included
  /// @param outliers  balanced: ascending lengths
  CarriedSteps(std::shared_ptr<const Stream> stream, std::int64_t tokens,
               const DealOptions& options, std::vector<std::int64_t> outliers);

  /// Thread-safe; calls with ascending steps cost one step each.
  Batch batch(std::int64_t step);

 private:
  /// The state before a step.
  struct State {
    std::int64_t position = 0;                 // in the stream
    std::vector<Waiting> carried;              // documents for which no microbatch had room
    std::vector<std::vector<Waiting>> queues;  // of outliers, in the order of reading
  };
  Batch advance(State& state, std::int64_t step) const;
  void read_window(State& state, std::int64_t step) const;
  void mark_later(std::vector<Waiting>& waiting, std::int64_t step) const;
  void release_outliers(State& state) const;

  std::shared_ptr<const Stream> stream_;
  std::int64_t tokens_;
  DealOptions deal_options_;
  std::vector<std::int64_t> outliers_;
  std::mutex mutex_;
  std::map<std::int64_t, State> remembered_;  // by step: every kRemembered-th that was passed
  std::int64_t next_ = 0;                     // the step after the last requested one
  State last_;                                // state before next_
};

// --- The corpus as an endless stream: its documents in order, repeated ---

class Stream {
 public:
  /// Copies the lengths (at least one). With `shuffle` each pass over the corpus has its own order,
  /// given by (seed, pass).
  Stream(std::span<const std::int64_t> lengths, bool shuffle, std::uint64_t seed);

  class Cursor;
  /// A cursor at a position, in tokens of the stream. Thread-safe.
  Cursor cursor(std::int64_t position) const;

 private:
  struct Pass;    // documents of one pass with prefix sums of their lengths
  struct Recent;  // shuffled passes in use
  std::shared_ptr<const Pass> pass(std::int64_t index) const;

  bool shuffle_;
  std::uint64_t seed_;
  std::shared_ptr<const Pass> file_order_;
  std::shared_ptr<Recent> recent_;
};

/// A place in the stream, from which documents are taken.
class Stream::Cursor {
 public:
  Cursor(const Stream& stream, std::int64_t position);

  /// Takes the next document, or as much of it as fits into `room` tokens.
  BatchDocument take(std::int64_t room);

 private:
  void next_document();

  const Stream& stream_;
  std::int64_t index_;  // index of the pass
  std::shared_ptr<const Pass> pass_;
  std::int64_t place_ = 0;   // place in the order of the pass
  std::int64_t offset_ = 0;  // tokens of the document already taken
};

}  // namespace cadenza::data
