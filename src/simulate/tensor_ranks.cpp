// SPDX-License-Identifier: Apache-2.0
#include "cadenza/simulate/tensor_ranks.hpp"

namespace cadenza::simulate {

bool tensor_ranks_alike(const config::Experiment& experiment, const program::Layout& layout,
                        const Costs& costs) {
  const Rank tensor = layout.tensor();
  if (tensor == 1) return true;
  if (experiment.cluster.varies()) return false;
  if (costs.node_of(0) == costs.node_of(layout.ranks() - 1)) return true;
  for (Rank rank = 1; rank < layout.ranks(); ++rank) {
    const bool first = rank % tensor == 0;
    if (!first && costs.adapter_of(rank) == costs.adapter_of(rank - 1)) return false;
    if (first || rank < tensor) continue;
    const Rank replica = rank - rank % tensor;
    const auto beside = [&](Rank r) { return costs.node_of(r) == costs.node_of(r - tensor); };
    if (beside(rank) != beside(replica)) return false;
  }
  return true;
}

}  // namespace cadenza::simulate
