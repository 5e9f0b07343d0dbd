// SPDX-License-Identifier: Apache-2.0
// Kokkos kernels for every device and shape, in float and double: the reference for the tuned ones.
#pragma once

#include "cadenza/kernels/attention.hpp"

namespace cadenza::kernels::portable {

template <typename Real>
void attention_forward(const AttentionShape& shape, const RotaryTable<Real>& rotary,
                       const TaskList<Real>& list);

/// Runs two passes, one owning queries and one owning keys: seven products instead of five.
template <typename Real>
void attention_backward(const AttentionShape& shape, const RotaryTable<Real>& rotary,
                        const TaskList<Real>& list);

}  // namespace cadenza::kernels::portable
