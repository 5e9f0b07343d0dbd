// SPDX-License-Identifier: Apache-2.0
// A whole training step on one rank, by the executor that `cadenza train` uses.
#pragma once

#include "measure.hpp"

namespace cadenza::bench {

/// Forward, backward and AdamW (no clipping) of a Llama-style model on one microbatch of synthetic
/// documents: {"layers", "d_model", "heads", "kv_heads", "ffn", "vocab", "documents": [lengths],
/// "dtype": "float32" | "bfloat16"}. A repetition includes making its plan. Reports the loss and
/// the tokens of a step.
std::unique_ptr<Work> make_step(const Json& request);

}  // namespace cadenza::bench
