// SPDX-License-Identifier: Apache-2.0
// What `cadenza evaluate` finds out: losses by place and by length of the document, and answers by
// length and depth.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/program/step_plan.hpp"
#include "cadenza/trace/events/event.hpp"

namespace cadenza::app {

/// The losses of a step, of this rank (positions, answers) and of all (documents).
struct StepLosses {
  std::vector<trace::PositionLoss> positions;
  std::vector<trace::AnswerLoss> answers;
  std::vector<program::DocumentLoss> documents;  ///< of the batch, in order
};

/// Adds up the steps of an evaluation.
class Evaluation {
 public:
  /// @param json  whether report() is JSON
  explicit Evaluation(bool json) : json_(json) {}

  bool json() const { return json_; }
  /// Adds a step. Collective; all ranks know the sums.
  /// @param corpus  rank 0 reads the words of its documents if its tokens are bytes of text
  void end_step(comm::Communicator& world, const config::Experiment& experiment,
                const data::Batch& batch, const data::Corpus& corpus, const StepLosses& losses);

  /// Names the evaluated weights.
  void set_weights(const std::string& checkpoint, std::int64_t step) {
    checkpoint_ = checkpoint;
    step_ = step;
  }
  std::string table() const;
  std::string to_json(const config::Experiment& experiment) const;

 private:
  struct Sums {
    std::int64_t documents = 0;
    double targets = 0;
    double hits = 0;
    double loss = 0;
    double mean() const { return loss / (targets > 0 ? targets : 1); }
    double accuracy() const { return hits / (targets > 0 ? targets : 1); }
    Sums& operator+=(const Sums& more) {
      documents += more.documents;
      targets += more.targets;
      hits += more.hits;
      loss += more.loss;
      return *this;
    }
  };
  struct Answers {
    std::int64_t questions = 0;
    std::int64_t right = 0;  ///< all tokens of the answer were the model's first choice
    std::int64_t tokens = 0;
    double loss = 0;  ///< of the tokens
  };
  /// Length of the document (the power of two at or below it), fifth of the document.
  using Cell = std::pair<std::int64_t, int>;

  void add_answers(std::span<const trace::AnswerLoss> answers);
  void count_words(const data::Batch& batch, const data::Corpus& corpus);
  std::string answers_table() const;
  double bits_per_byte() const;
  double word_perplexity() const;

  bool json_;
  std::string checkpoint_;
  std::int64_t step_ = 0;
  std::int64_t steps_ = 0;
  Sums all_;
  std::map<std::int64_t, Sums> by_position_;
  std::map<std::int64_t, Sums> by_length_;
  std::map<Cell, Answers> answers_;
  std::int64_t words_ = 0;  ///< of text
  bool is_text_ = false;
};

}  // namespace cadenza::app
