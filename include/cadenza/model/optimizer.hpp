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

/// Global L2 norm of the gradients.
template <typename Real>
double gradient_norm(const Parameters<Real>& parameters);

/// One AdamW update with the gradients scaled by min(1, clip / norm): values, moments and the
/// working copy of the values in one pass. Decay acts on matrices only.
/// @param step  from 0 (bias correction uses step + 1)
template <typename Real>
void adamw(Parameters<Real>& parameters, const config::Optimizer& optimizer, double rate,
           double norm, std::int64_t step);

}  // namespace cadenza::model
