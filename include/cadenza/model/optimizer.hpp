// SPDX-License-Identifier: Apache-2.0
// AdamW with decoupled decay (arXiv 1711.05101), clipping by global norm, learning-rate schedules.
#pragma once

#include <cstdint>

#include "cadenza/config/experiment.hpp"
#include "cadenza/model/parameters.hpp"

namespace cadenza::model {

/// Learning rate of step s (from 0): linear warm-up lr (s + 1) / warmup, then constant or a cosine
/// to zero at `steps`.
double learning_rate(const config::Optimizer& optimizer, std::int64_t step, std::int64_t steps);

/// Sum of squares of the owned gradients, in double. Parameters that every rank of a tensor group
/// has count on its rank 0 alone: summed over the ranks that own different elements, it is the
/// squared global norm.
template <typename Real>
double squared_gradient_norm(const Parameters<Real>& parameters);

/// One AdamW update of the owned elements with the gradients scaled by min(1, clip / norm): values,
/// moments and the working copy of the values in one pass. Decay acts on matrices only.
/// @param norm  global L2 norm of the gradients
/// @param step  from 0 (bias correction uses step + 1)
template <typename Real>
void adamw(Parameters<Real>& parameters, const config::Optimizer& optimizer, double rate,
           double norm, std::int64_t step);

}  // namespace cadenza::model
