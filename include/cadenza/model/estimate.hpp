// SPDX-License-Identifier: Apache-2.0
// Bytes of a model from its shape: what traces and dry runs state.
#pragma once

#include <cstdint>

#include "cadenza/config/experiment.hpp"
#include "cadenza/model/activations.hpp"
#include "cadenza/model/part.hpp"

namespace cadenza::model {

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
