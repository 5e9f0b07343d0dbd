// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cadenza/data/batch.hpp"
#include "cadenza/data/corpus.hpp"
#include "cadenza/exec/binding.hpp"
#include "cadenza/model/llama.hpp"

namespace cadenza::exec {

/// Places of the rows at home in their documents, by which losses are reported.
struct RowPlaces {
  struct Answer {
    std::int64_t row = 0;
    std::int64_t length = 0;  ///< tokens of the document
    data::Question question;
  };
  std::vector<std::int64_t> places;  ///< of each row in its document; -1: no target
  std::vector<Answer> answers;
};

/// Reads the tokens, positions and targets of the rows at home of `microbatch`, whose first
/// document has number `first_document` in the plan. Padding rows have token 0 and no target.
void read_rows(const data::Corpus& corpus, const data::Microbatch& microbatch,
               const plan::Workload& workload, int first_document, const HomeRows& home,
               model::TokenBatch& rows, RowPlaces& places);

}  // namespace cadenza::exec
