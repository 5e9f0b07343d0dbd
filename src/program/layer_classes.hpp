// SPDX-License-Identifier: Apache-2.0
// Which layers have plans of their own. A plan balances the rows of documents by what attention
// keeps of them, which differs between layers; where layers are alike, one plan is for all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/base/sparse_density.hpp"
#include "cadenza/config/experiment.hpp"

namespace cadenza::program {

struct LayerClass {
  std::vector<int> layers;  ///< of the model, ascending; empty: all
  bool dense = false;       ///< of a sparse experiment
};

/// Each layer in one class, dense ones first; one without layers where all follow the same plan.
/// @param lengths  of a step's documents
std::vector<LayerClass> layer_classes(const config::Experiment& experiment,
                                      std::span<const std::int64_t> lengths,
                                      const SparseEstimate& estimate);

}  // namespace cadenza::program
