// SPDX-License-Identifier: Apache-2.0
#include "app/evaluate/scoring.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "cadenza/base/error.hpp"

namespace cadenza::app {

config::Experiment scoring(config::Experiment e) {
  e.run.evaluates = true;
  if (config::delays_documents(e.batch.packing)) e.batch.packing = config::Packing::pooled;
  e.attention.sparse.dense_steps = 0;
  e.attention.sparse.refresh = 1;
  return e;
}

std::int64_t steps_of_pass(const config::Experiment& experiment, const data::Corpus& corpus) {
  const std::span<const std::int64_t> lengths = corpus.lengths();
  if (std::ranges::max(lengths) < 2) {
    fail(ExitCode::data, "the documents have one token each: there is no target to evaluate");
  }
  const auto tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  return (tokens + experiment.batch.tokens - 1) / experiment.batch.tokens;
}

void ScoredOnce::mark(data::Batch& batch, config::Packing packing) {
  std::vector<data::BatchDocument*> documents;
  for (data::Microbatch& microbatch : batch.microbatches) {
    for (data::BatchDocument& document : microbatch.documents) documents.push_back(&document);
  }
  if (packing != config::Packing::fixed) {
    // Dealt out in any order: where the corpus begins anew and the step ends in a document that it
    // has whole, the whole one counts.
    std::ranges::stable_sort(documents, {}, [](const data::BatchDocument* document) {
      return std::pair(document->tokens.begin, -document->tokens.end);
    });
  }
  for (data::BatchDocument* document : documents) {
    std::int64_t& end = scored_[document->corpus_document];
    document->scored = document->tokens.begin >= end;
    if (document->scored) end = document->tokens.end;
  }
}

}  // namespace cadenza::app
