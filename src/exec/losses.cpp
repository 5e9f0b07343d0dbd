// SPDX-License-Identifier: Apache-2.0
#include "exec/losses.hpp"

#include <algorithm>
#include <bit>
#include <map>

namespace cadenza::exec {

namespace {

/// Low bits of a place that its bin ignores: all but the leading three.
int bits_within(std::int64_t place) {
  constexpr int kTold = 3;
  const auto width = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(place)));
  return std::max(0, width - kTold);
}

/// Returns the number of the bin of a place; bins in ascending order are numbered without gaps.
std::size_t bin_of(std::int64_t place) {
  const int within = bits_within(place);
  return static_cast<std::size_t>(4 * within + (place >> within));
}

}  // namespace

std::int64_t bin_begin(std::int64_t place) {
  const int within = bits_within(place);
  return place >> within << within;
}

void LossRecord::begin_step(std::int64_t step) {
  step_ = static_cast<std::uint32_t>(step);
  bins_.clear();
  answers_.clear();
  documents_.clear();
}

template <typename Sum>
void LossRecord::add(const RowPlaces& places, Range rows, const model::TokenLosses<Sum>& losses) {
  const auto at = [&](std::int64_t row) { return static_cast<std::size_t>(row - rows.begin); };
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const std::int64_t place = places.places[static_cast<std::size_t>(row)];
    if (place < 0) continue;
    const std::size_t number = bin_of(place);
    if (number >= bins_.size()) bins_.resize(number + 1);
    trace::PositionLoss& bin = bins_[number];
    bin.step = step_;
    bin.position = bin_begin(place);
    const int hit = losses.margin[at(row)] == 0 ? 1 : 0;
    const auto loss = static_cast<double>(losses.loss[at(row)]);
    ++bin.targets;
    bin.hits += hit;
    bin.loss += loss;
    const auto document = static_cast<std::size_t>(places.document_of(row));
    if (document >= documents_.size()) documents_.resize(document + 1);
    DocumentLoss& whole = documents_[document];
    ++whole.targets;
    whole.hits += hit;
    whole.loss += loss;
  }
  for (const RowPlaces::Answer& answer : places.answers) {
    if (answer.row < rows.begin || answer.row >= rows.end) continue;
    answers_.push_back(
        {step_, losses.margin[at(answer.row)] == 0 ? 1u : 0u, answer.length, answer.question.fact,
         answer.question.token + 1, static_cast<double>(losses.loss[at(answer.row)]),
         static_cast<std::int32_t>(places.document_of(answer.row)), answer.question.number});
  }
}

std::vector<trace::PositionLoss> LossRecord::positions() const {
  std::vector<trace::PositionLoss> found = bins_;
  std::erase_if(found, [](const trace::PositionLoss& bin) { return bin.targets == 0; });
  return found;
}

template void LossRecord::add(const RowPlaces&, Range, const model::TokenLosses<float>&);
template void LossRecord::add(const RowPlaces&, Range, const model::TokenLosses<double>&);

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
  places.documents.assign(count, 0);
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
      if (token + 1 >= end || !microbatch.documents[document].scored) continue;
      rows.targets[row] = tokens[token + 1];
      places.places[row] = position;
      places.documents[row] = piece.document - first_document;
      const auto& known = questions[document];
      if (const auto asked = known.find(position); asked != known.end()) {
        places.answers.push_back({piece.row + i, length, asked->second});
      }
    }
  }
}

}  // namespace cadenza::exec
