// SPDX-License-Identifier: Apache-2.0
#include "exec/microbatch.hpp"

#include <map>

namespace cadenza::exec {
namespace {

/// Returns the questions of a document by the position of the asking token.
std::map<std::int64_t, data::Question> questions_of(const data::Corpus& corpus,
                                                    const data::BatchDocument& document) {
  std::map<std::int64_t, data::Question> found;
  for (const data::Question& question :
       data::questions_within(corpus.questions(document.corpus_document), document.tokens)) {
    found.emplace(question.token, question);
  }
  return found;
}

}  // namespace

void read_rows(const data::Corpus& corpus, const data::Microbatch& microbatch,
               const plan::Workload& workload, int first_document, const HomeRows& home,
               model::TokenBatch& rows, RowPlaces& places) {
  const std::vector<data::Token> tokens = data::read_tokens(corpus, microbatch);
  std::vector<std::size_t> begins{0};  // first token of each document
  std::vector<std::map<std::int64_t, data::Question>> questions;
  for (const data::BatchDocument& document : microbatch.documents) {
    questions.push_back(questions_of(corpus, document));
    begins.push_back(begins.back() + static_cast<std::size_t>(document.length()));
  }
  const auto count = static_cast<std::size_t>(home.rows());
  rows.tokens.assign(count, 0);
  rows.positions.assign(count, 0);
  rows.targets.assign(count, -1);
  places.places.assign(count, -1);
  places.answers.clear();
  for (const RowPiece& piece : home.pieces) {
    const auto document = static_cast<std::size_t>(piece.document - first_document);
    const std::size_t begin = begins.at(document);
    const std::size_t end = begins.at(document + 1);
    const auto length = static_cast<std::int64_t>(end - begin);
    for (std::int64_t i = 0; i < piece.tokens.size(); ++i) {
      const std::int64_t position =
          plan::position_of(workload.order, length, piece.tokens.begin + i);
      const auto row = static_cast<std::size_t>(piece.row + i);
      const std::size_t token = begin + static_cast<std::size_t>(position);
      rows.tokens[row] = tokens[token];
      rows.positions[row] = static_cast<std::int32_t>(workload.mask.key_position(position));
      if (token + 1 >= end) continue;
      rows.targets[row] = tokens[token + 1];
      places.places[row] = position;
      const auto& known = questions[document];
      if (const auto asked = known.find(position); asked != known.end()) {
        places.answers.push_back({piece.row + i, length, asked->second});
      }
    }
  }
}

}  // namespace cadenza::exec
