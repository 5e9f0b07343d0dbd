// SPDX-License-Identifier: Apache-2.0
// Classes of layers with plans of their own. A plan balances rows by the pairs that attention
// keeps, which differ between layers; similar layers share a plan.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/base/sparse_density.hpp"
#include "cadenza/config/experiment.hpp"

namespace cadenza::program {

struct LayerClass {
  std::vector<int> layers;  ///< layers of the model, ascending; empty: all
  bool full = false;        ///< layers with full attention (attention.layers)
};

/// Divides the layers into classes, the full one first; one class without layers where all share a
/// plan.
/// @param lengths  lengths of a step's documents
std::vector<LayerClass> layer_classes(const config::Experiment& experiment,
                                      std::span<const std::int64_t> lengths,
                                      const SparseEstimate& estimate);

}  // namespace cadenza::program
