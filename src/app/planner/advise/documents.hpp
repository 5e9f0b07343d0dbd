// SPDX-License-Identifier: Apache-2.0
// What the lengths of documents say before any layout: where attention's work lies, and how uneven
// it is between sequences.
#pragma once

#include <cstdint>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/data/batch.hpp"

namespace cadenza::app {

/// Documents of [from, to) tokens: their shares, in [0, 1].
struct LengthBin {
  std::int64_t from = 0;
  std::int64_t to = 0;
  double documents = 0;
  double tokens = 0;
  double attention = 0;  ///< of the pairs that core attention computes
};

/// Of the documents of a few steps, as batches have them: cut at the edges of sequences.
struct Documents {
  int steps = 0;
  std::int64_t count = 0;
  double mean = 0;  ///< tokens
  std::int64_t median = 0;
  std::int64_t percentile_99 = 0;
  std::int64_t longest = 0;
  double tokens = 0;           ///< of a step
  double model_flops = 0;      ///< of a step (cost::model_flops)
  double attention_flops = 0;  ///< ... those of core attention
  /// Pairs of the sequence with most of them over the mean of its step's, mean over steps: how much
  /// longer attention takes where it stays with whole sequences.
  double imbalance = 1;
  /// From the shortest to the longest, each twice as wide as the one before; the first has all that
  /// hold hardly any tokens.
  std::vector<LengthBin> bins;
};

Documents documents_of(const config::Experiment& experiment, const data::Packer& packer);

}  // namespace cadenza::app
