// SPDX-License-Identifier: Apache-2.0
// The steps by which a search compares candidates, in microbatches of every size that it tries.
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
  double share = 1;  ///< of the steps, which it stands for
  data::Batch batch;
  simulate::LeastTime least_time;
  std::vector<double> attention;  ///< by microbatch (LeastTime::attention)
  double model_flops = 0;         ///< cost::model_flops: larger microbatches cut fewer documents
};

/// The mean over steps by what they stand for.
/// @param value  of a PackedStep
template <class Value>
double mean_of(std::vector<PackedStep>& steps, Value value) {
  double sum = 0;
  for (PackedStep& step : steps) sum += step.share * value(step);
  return sum;
}

/// Of the first steps the one in the middle by the attention of its fullest microbatch, which ranks
/// wait for; by microbatches of the least size, so that it is the same for all. Where steps are of
/// two kinds, as few have a long document, the middle one of each: a light and a heavy one.
class TypicalSteps {
 public:
  /// @param given  with placement auto
  TypicalSteps(const config::Experiment& given, const data::Corpus& corpus,
               const config::Machine& machine);

  /// In the microbatches of a candidate; the heavy one last.
  /// @throws Error(usage) as simulate::Costs
  std::vector<PackedStep>& in_microbatches_of(const config::Experiment& candidate);

  double tokens() const { return tokens_; }

 private:
  struct Number {
    std::int64_t step = 0;
    double share = 1;
  };

  const data::Corpus& corpus_;
  const config::Machine& machine_;
  std::vector<Number> numbers_;
  double tokens_ = 0;                                       ///< mean
  std::map<std::int64_t, std::vector<PackedStep>> packed_;  ///< by batch.microbatch
};

}  // namespace cadenza::app
