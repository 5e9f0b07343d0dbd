// SPDX-License-Identifier: Apache-2.0
// Backward core attention: probabilities are recomputed from the merged lse, so every task's
// gradients simply add. Two passes, one owning queries and one owning keys, so that no sum needs
// atomics.
#include <cmath>

#include "attention.hpp"
#include "attention_key_gradient.hpp"
#include "attention_query_gradient.hpp"

namespace cadenza::kernels::portable {

template <typename Real>
void attention_backward(const AttentionShape& shape, const RotaryTable<Real>& rotary,
                        const TaskList<Real>& list) {
  KeptProblem<Real>& kept = kept_problem(shape, rotary, list);
  const UnitShape queries{Side::queries, kQueryTile, kMaxGroupHeads};
  const UnitShape keys{Side::keys, kKeyTile, shape.group()};
  run_units<Real>("attention_query_gradient",
                  QueryGradientPass<Real>(kept.problem(shape, list, queries)));
  run_units<Real>("attention_key_gradient", KeyGradientPass<Real>(kept.problem(shape, list, keys)));
}

template void attention_backward<float>(const AttentionShape&, const RotaryTable<float>&,
                                        const TaskList<float>&);
template void attention_backward<double>(const AttentionShape&, const RotaryTable<double>&,
                                         const TaskList<double>&);

}  // namespace cadenza::kernels::portable
