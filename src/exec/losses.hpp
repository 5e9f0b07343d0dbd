// SPDX-License-Identifier: Apache-2.0
// A microbatch as a rank reads it (tokens, positions, places of answers), and the losses of its
// rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/data/batch.hpp"
#include "cadenza/data/corpus.hpp"
#include "cadenza/exec/memory/binding.hpp"
#include "cadenza/model/llama.hpp"
#include "cadenza/program/step_plan.hpp"
#include "cadenza/trace/events/event.hpp"

namespace cadenza::exec {

/// Places of the rows at home in their documents, by which losses are reported.
struct RowPlaces {
  struct Answer {
    std::int64_t row = 0;
    std::int64_t length = 0;  ///< tokens of the document
    data::Question question;
  };
  std::vector<std::int64_t> places;     ///< of each row in its document; -1: no target
  std::vector<std::int64_t> documents;  ///< of each row: number among the microbatch's documents
  std::int64_t first_document = 0;      ///< number among the step's documents of the first of these
  std::vector<Answer> answers;

  /// The number among the step's documents of the one that a row is of.
  std::int64_t document_of(std::int64_t row) const {
    return first_document + documents[static_cast<std::size_t>(row)];
  }
};

/// Reads the tokens, positions and targets of the rows at home of `microbatch`, whose first
/// document has number `first_document` in the plan. Padding rows have token 0 and no target.
void read_rows(const data::Corpus& corpus, const data::Microbatch& microbatch,
               const plan::Workload& workload, int first_document, const HomeRows& home,
               model::TokenBatch& rows, RowPlaces& places);

// --- Losses ---

// Losses of a step by the place of the token before the target in its document, and losses of
// answers to questions: rows of this rank's trace.

using program::DocumentLoss;

class LossRecord {
 public:
  void begin_step(std::int64_t step);
  /// @param rows    rows of the microbatch that `places` describes
  /// @param losses  of these rows
  template <typename Sum>
  void add(const RowPlaces& places, Range rows, const model::TokenLosses<Sum>& losses);

  /// Losses in bins of ascending place, four per doubling; empty bins are left out.
  std::vector<trace::PositionLoss> positions() const;
  std::span<const trace::AnswerLoss> answers() const { return answers_; }
  /// By number among the step's documents, as far as this rank has rows of them.
  std::span<const DocumentLoss> documents() const { return documents_; }

 private:
  std::uint32_t step_ = 0;
  std::vector<trace::PositionLoss> bins_;
  std::vector<trace::AnswerLoss> answers_;
  std::vector<DocumentLoss> documents_;
};

/// First place of the bin that contains `place`: 0 to 8, 10, 12, 14, 16, 20, 24, 28, 32, ...
std::int64_t bin_begin(std::int64_t place);

}  // namespace cadenza::exec
