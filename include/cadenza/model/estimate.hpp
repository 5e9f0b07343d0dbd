// SPDX-License-Identifier: Apache-2.0
// FLOPs and bytes of a model from its shape: what traces and dry runs state.
#pragma once

#include <cstdint>
#include <span>

#include "cadenza/config/experiment.hpp"

namespace cadenza::model {

/// FLOPs (multiply + add = 2) of the dense parts, forward, for `rows` tokens; backward costs twice
/// as much.
double attention_inputs_flops(const config::Model& model, std::int64_t rows);
double attention_outputs_flops(const config::Model& model, std::int64_t rows);
double head_flops(const config::Model& model, std::int64_t rows);

/// FLOPs of a training step over documents of these lengths, without recomputation:
/// 3 x dense forward + 3.5 x causal attention forward (4 * head_dim * heads * L(L+1)/2 per layer).
double step_flops(const config::Model& model, std::span<const std::int64_t> lengths);

/// Elements of all parameters.
std::int64_t parameter_elements(const config::Model& model);

/// Bytes of the parameters, their gradients and moments of a run in this type.
std::int64_t parameter_bytes(const config::Model& model, config::Dtype dtype);

/// Bytes that Llama allocates for a microbatch of `rows` tokens, its tokens, positions and targets
/// among them.
std::int64_t activation_bytes(const config::Model& model, std::int64_t rows, config::Dtype dtype);

}  // namespace cadenza::model
