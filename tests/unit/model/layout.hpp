// SPDX-License-Identifier: Apache-2.0
// The whole model cut into parts and run as an executor would: stages one after another, tensor
// groups in lockstep, all microbatches in flight, halves of a microbatch one layer apart.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "unit/model/support.hpp"

namespace cadenza::model::test {

struct Layout {
  std::int64_t stages = 1;
  std::int64_t chunks = 1;  ///< groups of layers per stage
  int tensor = 1;
  config::Recompute recompute = config::Recompute::none;
  bool halves = false;  ///< microbatches are cut in the middle, where a document ends
  bool reduces_norms = true;
  config::Precision tensor_sums = config::Precision::stored;
  config::Precision residual = config::Precision::sums;
};

struct LayoutResult {
  std::vector<double> losses;               ///< of each microbatch
  std::map<std::string, Vector> gradients;  ///< whole parameters by name
  Vector dx;                                ///< [T, C] towards the embedding, of the last batch
};

/// Forward of all microbatches, then backward of all. Attention by the kernels.
/// @param values  the parameters of the whole model, as whole_table() lays them out
template <typename Real>
LayoutResult run_layout(const config::Model& model, const Vector& values,
                        const std::vector<TokenBatch>& batches, const Layout& layout);

/// Parameters large enough that every part of the model matters.
inline Vector strong_values(const config::Model& model, std::uint64_t seed) {
  const ParameterTable table = whole_table(model);
  std::mt19937_64 random(seed);
  Vector values = normal(table.elements, random, 0.4);
  // Norms around one; float keeps them as they are drawn.
  for (auto i = static_cast<std::size_t>(table.sliced_elements); i < values.size(); ++i) {
    values[i] = static_cast<float>(1 + values[i]);
  }
  return values;
}

}  // namespace cadenza::model::test
