// SPDX-License-Identifier: Apache-2.0
// Checks of a call that every kernel requires.
#pragma once

#include "cadenza/kernels/attention.hpp"

namespace cadenza::kernels {

/// @throws Error(usage) if a task lies outside its buffers, heads or the rotary table.
template <typename Real>
void check_list(const AttentionShape& shape, const RotaryTable<Accumulator<Real>>& rotary,
                const TaskList<Real>& list);

}  // namespace cadenza::kernels
