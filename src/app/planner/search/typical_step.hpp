// SPDX-License-Identifier: Apache-2.0
// The step by which a search compares candidates, in microbatches of every size that it tries.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/data/corpus.hpp"
#include "cadenza/simulate/least_time.hpp"

namespace cadenza::app {

/// A step in microbatches of one size.
struct PackedStep {
  data::Batch batch;
  simulate::LeastTime least_time;
  std::vector<double> attention;  ///< by microbatch (LeastTime::attention)
  double model_flops = 0;         ///< cost::model_flops: larger microbatches cut fewer documents
};

/// Of the first steps the one in the middle by the attention of its fullest microbatch, which ranks
/// wait for; by microbatches of the least size, so that it is the same for all.
class TypicalStep {
 public:
  /// @param given  with placement auto
  TypicalStep(const config::Experiment& given, const data::Corpus& corpus,
              const config::Machine& machine);

  /// In the microbatches of a candidate. @throws Error(usage) as simulate::Costs
  PackedStep& in_microbatches_of(const config::Experiment& candidate);

  double tokens() const { return tokens_; }

 private:
  const data::Corpus& corpus_;
  const config::Machine& machine_;
  std::int64_t number_ = 0;
  double tokens_ = 0;
  std::map<std::int64_t, PackedStep> packed_;  ///< by batch.microbatch
};

}  // namespace cadenza::app
