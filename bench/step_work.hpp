// SPDX-License-Identifier: Apache-2.0
// A whole training step on one rank, by the executor that `cadenza train` uses.
#pragma once

#include "cadenza/config/experiment.hpp"
#include "measure.hpp"

namespace cadenza::bench {

/// The experiment of one rank that a request of make_step describes. @throws Error(usage)
config::Experiment step_experiment(const Json& request);

/// Forward, backward and AdamW (no clipping) of a Llama-style model on one microbatch of synthetic
/// documents: {"layers", "d_model", "heads", "kv_heads", "ffn", "vocab", "documents": [lengths],
/// "dtype": "float32" | "bfloat16"}. A repetition includes making its plan. Reports the loss and
/// the tokens of a step.
std::unique_ptr<Work> make_step(const Json& request);

}  // namespace cadenza::bench
