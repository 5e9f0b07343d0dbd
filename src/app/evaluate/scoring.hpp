// SPDX-License-Identifier: Apache-2.0
// Forward passes that measure losses: of cadenza evaluate, and of validation during training.
#pragma once

#include <cstdint>
#include <map>

#include "cadenza/config/experiment.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/data/corpus.hpp"

namespace cadenza::app {

/// The experiment with steps of forward passes: every document belongs to the step that reads it,
/// and the weights attend as they do after training.
config::Experiment scoring(config::Experiment experiment);

/// Steps that read all of a corpus. @throws Error(data) where no document has a target
std::int64_t steps_of_pass(const config::Experiment& experiment, const data::Corpus& corpus);

/// Where the corpus begins anew in the last step, its documents count no more.
class ScoredOnce {
 public:
  /// Marks the documents that earlier steps have scored. To be called for each step in order, on
  /// every rank.
  void mark(data::Batch& batch, config::Packing packing);

 private:
  std::map<std::int64_t, std::int64_t> scored_;  ///< by document of the corpus: end of what is
};

}  // namespace cadenza::app
