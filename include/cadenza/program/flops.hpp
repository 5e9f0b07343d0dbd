// SPDX-License-Identifier: Apache-2.0
// Floating-point operations of a step of a program outside core attention: what real and simulated
// traces state.
#pragma once

#include <cstdint>

#include "cadenza/config/experiment.hpp"
#include "cadenza/program/program.hpp"

namespace cadenza::program {

/// Of the step's matrix products on one tensor rank, those that are computed again included; a
/// backward pass takes two per forward product, the loss is forward and backward at once. 0 for all
/// that multiplies no matrices.
/// @param rows  tokens of the rank in the operation
double matrix_flops(const Step& step, const config::Experiment& experiment, std::int64_t rows);

}  // namespace cadenza::program
