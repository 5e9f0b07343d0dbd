// SPDX-License-Identifier: Apache-2.0
// Frequencies of the rotary embedding (RoPE, arXiv 2104.09864) and how they are scaled for
// documents that are longer than those of training.
#pragma once

#include "cadenza/attention/core_attention.hpp"
#include "cadenza/config/experiment.hpp"

namespace cadenza::model {

/// f_d = theta^(-2 d / head_dim) for pairs d in [0, head_dim / 2), scaled as rope.scaling says:
/// - linear: f_d / factor (position interpolation, arXiv 2306.15595);
/// - yarn: f_d / factor where a pair turns less than beta_slow times within original_context
///   tokens, f_d where it turns more than beta_fast times, a ramp over d between them; rotated
///   vectors grow by the concentration factor (YaRN, arXiv 2309.00071);
/// - llama3: the same with low_frequency and high_frequency, smooth over the number of turns
///   (arXiv 2407.21783, section 3.4, as its code has it).
attention::RotaryFrequencies rotary_frequencies(const config::Rope& rope, int head_dim);

}  // namespace cadenza::model
