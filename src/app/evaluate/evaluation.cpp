// SPDX-License-Identifier: Apache-2.0
#include "app/evaluate/evaluation.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <numeric>

#include "cadenza/base/at.hpp"

namespace cadenza::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDepths = 5;
constexpr int kEvaluationChannel = 0;

/// Returns the rows of all ranks, by rank. Collective.
template <typename Row>
std::vector<Row> gather(comm::Communicator& world, std::span<const Row> mine) {
  const auto size = static_cast<std::int64_t>(mine.size_bytes());
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&size, 1)), std::as_writable_bytes(std::span(sizes)));
  const auto bytes = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  std::vector<Row> all(static_cast<std::size_t>(bytes) / sizeof(Row));
  world.post_all_gather_v(std::as_bytes(mine), sizes, std::as_writable_bytes(std::span(all)),
                          kEvaluationChannel);
  world.wait(kEvaluationChannel);
  return all;
}

std::int64_t power_of_two_below(std::int64_t length) {
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(length)));
}

bool is_space(data::Token token) {
  return token == ' ' || (token >= '\t' && token <= '\r') || token >= data::kBeginToken;
}

}  // namespace

void Evaluation::end_step(comm::Communicator& world, const config::Experiment& experiment,
                          const data::Batch& batch, const data::Corpus& corpus,
                          const StepLosses& losses) {
  ++steps_;
  for (const trace::PositionLoss& row : gather<trace::PositionLoss>(world, losses.positions)) {
    by_position_[row.position] +=
        {0, static_cast<double>(row.targets), static_cast<double>(row.hits), row.loss};
  }
  add_answers(gather<trace::AnswerLoss>(world, losses.answers));
  const std::vector<std::int64_t> lengths = batch.lengths();
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const program::DocumentLoss& document = losses.documents[i];
    if (document.targets == 0) continue;
    const Sums sums{1, document.targets, document.hits, document.loss};
    all_ += sums;
    by_length_[power_of_two_below(lengths[i])] += sums;
  }
  is_text_ = experiment.data.source == config::Source::text;
  if (is_text_ && world.rank() == 0) count_words(batch, corpus);
}

void Evaluation::add_answers(std::span<const trace::AnswerLoss> answers) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<const trace::AnswerLoss*>> questions;
  for (const trace::AnswerLoss& answer : answers) {
    questions[{answer.document, answer.question}].push_back(&answer);
  }
  for (const auto& [question, tokens] : questions) {
    const auto first = *std::ranges::min_element(tokens, {}, &trace::AnswerLoss::position);
    const auto depth = static_cast<int>(first->fact * kDepths / first->length);
    Answers& cell = answers_[{power_of_two_below(first->length), depth}];
    ++cell.questions;
    cell.right += std::ranges::all_of(tokens, [](const auto* token) { return token->hit != 0; });
    cell.tokens += std::ssize(tokens);
    for (const trace::AnswerLoss* token : tokens) cell.loss += token->loss;
  }
}

/// Counts the words that begin at a target: PG-19's unit of perplexity (arXiv 1911.05507).
void Evaluation::count_words(const data::Batch& batch, const data::Corpus& corpus) {
  for (const data::Microbatch& microbatch : batch.microbatches) {
    const std::vector<data::Token> tokens = data::read_tokens(corpus, microbatch);
    std::size_t begin = 0;
    for (const data::BatchDocument& document : microbatch.documents) {
      const std::size_t end = begin + static_cast<std::size_t>(document.length());
      for (std::size_t i = begin + 1; document.scored && i < end; ++i) {
        words_ += is_space(tokens[i - 1]) && !is_space(tokens[i]) ? 1 : 0;
      }
      begin = end;
    }
  }
}

double Evaluation::bits_per_byte() const {
  return all_.mean() / std::numbers::ln2;
}

double Evaluation::word_perplexity() const {
  return std::exp(all_.loss / static_cast<double>(words_));
}

std::string Evaluation::table() const {
  std::string text = fmt::format(
      "weights   {}, step {}\ndocuments {}, {} targets\nloss      {:.4f}, perplexity {:.4f}, first "
      "choice right {:.2f} %\n",
      checkpoint_, step_, all_.documents, std::llround(all_.targets), all_.mean(),
      std::exp(all_.mean()), 100 * all_.accuracy());
  if (is_text_) {
    text += fmt::format("text      {:.4f} bits a byte", bits_per_byte());
    if (words_ > 0) {
      text += fmt::format(", perplexity {:.4g} a word ({} words)", word_perplexity(), words_);
    }
    text += "\n";
  }
  std::map<std::int64_t, Sums> by_doubling;
  for (const auto& [position, sums] : by_position_) {
    by_doubling[position == 0 ? 0 : power_of_two_below(position)] += sums;
  }
  constexpr const char* kRow = "  {:>16} {:>10} {:>9} {:>11} {:>8}\n";
  const auto rows = [&](const char* name, const std::map<std::int64_t, Sums>& by) {
    text += "\n" + fmt::format(kRow, name, "targets", "loss", "perplexity", "right");
    for (const auto& [key, sums] : by) {
      text += fmt::format(kRow, key, std::llround(sums.targets), fmt::format("{:.4f}", sums.mean()),
                          fmt::format("{:.4f}", std::exp(sums.mean())),
                          fmt::format("{:.2f} %", 100 * sums.accuracy()));
    }
  };
  rows("document from", by_length_);
  rows("place from", by_doubling);
  return text + answers_table();
}

/// A line for each length, a column for each fifth of the document before the fact.
std::string Evaluation::answers_table() const {
  if (answers_.empty()) return "";
  std::string text =
      "\n  answers right, by length and depth of the fact\n" + fmt::format("  {:>10}", "length");
  for (int depth = 0; depth < kDepths; ++depth) {
    text += fmt::format(" {:>14}", fmt::format("from {} %", 100 * depth / kDepths));
  }
  std::int64_t line = -1;
  int column = kDepths;
  for (const auto& [cell, answers] : answers_) {
    if (cell.first != line) {
      text += fmt::format("\n  {:>10}", cell.first);
      column = 0;
    }
    line = cell.first;
    for (; column < cell.second; ++column) text += fmt::format(" {:>14}", "");
    text += fmt::format(" {:>14}", fmt::format("{}/{}", answers.right, answers.questions));
    ++column;
  }
  return text + "\n";
}

std::string Evaluation::to_json(const config::Experiment& experiment) const {
  const auto numbers = [](const Sums& sums) {
    return Json{{"targets", std::llround(sums.targets)},
                {"loss", sums.mean()},
                {"perplexity", std::exp(sums.mean())},
                {"accuracy", sums.accuracy()}};
  };
  Json json = {{"name", experiment.name},
               {"checkpoint", checkpoint_},
               {"checkpoint_step", step_},
               {"steps", steps_},
               {"complete", steps_ == experiment.run.steps},
               {"documents", all_.documents}};
  json.update(numbers(all_));
  if (is_text_) json["bits_per_byte"] = bits_per_byte();
  if (words_ > 0) {
    json["words"] = words_;
    json["word_perplexity"] = word_perplexity();
  }
  json["lengths"] = Json::array();
  for (const auto& [length, sums] : by_length_) {
    Json row = {{"length", length}, {"documents", sums.documents}};
    row.update(numbers(sums));
    json["lengths"].push_back(row);
  }
  json["positions"] = Json::array();
  for (const auto& [position, sums] : by_position_) {
    Json row = {{"position", position}};
    row.update(numbers(sums));
    json["positions"].push_back(row);
  }
  std::int64_t questions = 0, right = 0;
  json["answers"] = Json::array();
  for (const auto& [cell, answers] : answers_) {
    questions += answers.questions;
    right += answers.right;
    json["answers"].push_back(
        {{"length", cell.first},
         {"depth", static_cast<double>(cell.second) / kDepths},
         {"questions", answers.questions},
         {"right", answers.right},
         {"accuracy", static_cast<double>(answers.right) / static_cast<double>(answers.questions)},
         {"loss", answers.loss / static_cast<double>(answers.tokens)}});
  }
  json["questions"] = questions;
  json["right"] = right;
  return json.dump(2);
}

}  // namespace cadenza::app
