// SPDX-License-Identifier: Apache-2.0
// The transformer by its definition, on the host in double: loops over tokens, nothing shared with
// the code under test but the names in the table of parameters.
#pragma once

#include <cstdint>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/model/llama.hpp"
#include "cadenza/model/parameters.hpp"

namespace cadenza::model::test {

struct ReferenceResult {
  double loss = 0;             ///< sum over targets
  std::vector<double> hidden;  ///< [T, C] what the LM head reads
};

/// @param values  flat parameters, laid out as `table` says
ReferenceResult reference_forward(const config::Model& model, const ParameterTable& table,
                                  const std::vector<double>& values, const TokenBatch& batch);

/// Attention inside the documents of a microbatch; positions restart at 0 with each document.
/// q [T, H, D] un-rotated, k [T, G, D] rotated, v [T, G, D] -> out [T, H, D].
struct AttentionInputs {
  std::vector<double> q, k, v;
};
std::vector<double> reference_attention(const config::Model& model,
                                        const std::vector<std::int32_t>& positions,
                                        const AttentionInputs& in);

/// Its gradients: dq of the un-rotated q, dk of the rotated k, dv, in the fields q, k, v.
AttentionInputs reference_attention_gradient(const config::Model& model,
                                             const std::vector<std::int32_t>& positions,
                                             const AttentionInputs& in,
                                             const std::vector<double>& dout);

}  // namespace cadenza::model::test
