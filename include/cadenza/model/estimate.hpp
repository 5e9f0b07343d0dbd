// SPDX-License-Identifier: Apache-2.0
// FLOPs and bytes of a model from its shape: what traces and dry runs state.
#pragma once

#include <cstdint>
#include <span>

#include "cadenza/config/experiment.hpp"
#include "cadenza/model/activations.hpp"
#include "cadenza/model/part.hpp"

namespace cadenza::model {

/// FLOPs (multiply + add = 2) of the dense parts of one layer, or of the head, on a rank with this
/// part, forward, for `rows` tokens of a microbatch; backward costs twice as much.
double attention_inputs_flops(const config::Model& model, const ModelPart& part, std::int64_t rows);
double attention_outputs_flops(const config::Model& model, const ModelPart& part,
                               std::int64_t rows);
double head_flops(const config::Model& model, const ModelPart& part, std::int64_t rows);

/// FLOPs of a training step over documents of these lengths, without recomputation:
/// 3 x dense forward + 3.5 x causal attention forward (4 * head_dim * heads * L(L+1)/2 per layer).
double step_flops(const config::Model& model, std::span<const std::int64_t> lengths);

/// Elements of all parameters of the model.
std::int64_t parameter_elements(const config::Model& model);

/// Bytes of a part's parameters and gradients, and of the moments of `owned` elements, of a run in
/// this type.
std::int64_t parameter_bytes(const config::Model& model, const ModelPart& part, config::Dtype dtype,
                             std::int64_t owned);

/// Bytes that Llama allocates, its tokens, positions and targets among them.
std::int64_t activation_bytes(const config::Model& model, const ModelPart& part,
                              const Capacity& capacity, config::Recompute recompute,
                              config::Dtype dtype);

}  // namespace cadenza::model
