// SPDX-License-Identifier: Apache-2.0
// The layers of every pipeline stage.
#pragma once

#include <vector>

#include "cadenza/base/range.hpp"
#include "cadenza/config/experiment.hpp"

namespace cadenza::program {

/// The layers of the model in each part of a pipeline of P stages, in the order in which a
/// microbatch passes through them: part c * P + s is chunk c of stage s. A pure function of model
/// and parallel, so that all who interpret an experiment agree on it.
///
/// parallel.stages says how many; without it, parts are even where pipeline x chunks divides the
/// layers. Elsewhere the slowest stage is as fast as possible, by the FLOPs of products for a
/// token: of its layers and, on the last stage, the head. The embedding is no product; among
/// equally good splits, earlier stages, which hold more microbatches, have fewer layers.
/// @pre pipeline x chunks <= layers
std::vector<Range> stage_layers(const config::Experiment& experiment);

}  // namespace cadenza::program
