// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cadenza/data/batch.hpp"
#include "cadenza/data/corpus.hpp"
#include "cadenza/exec/binding.hpp"
#include "cadenza/model/llama.hpp"

namespace cadenza::exec {

/// The tokens, positions and targets of the rows at home: those of `microbatch`, whose first
/// document has the number `first_document` in the plan. Rows of padding have token 0 and no
/// target.
void read_rows(const data::Corpus& corpus, const data::Microbatch& microbatch,
               const plan::Workload& workload, int first_document, const HomeRows& home,
               model::TokenBatch& rows);

}  // namespace cadenza::exec
