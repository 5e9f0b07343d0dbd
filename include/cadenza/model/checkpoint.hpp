// SPDX-License-Identifier: Apache-2.0
// Checkpoints: HDF5, one dataset per parameter under Hugging Face's Llama names and shapes, AdamW's
// moments beside them. Independent of the layout that wrote them.
#pragma once

#include <cstdint>
#include <string>

#include "cadenza/model/parameters.hpp"

namespace cadenza::model {

/// Writes `path` whole or not at all: datasets <name> ([out, in] or [width]),
/// optimizer/first_moment/<name>, optimizer/second_moment/<name>; attributes schema, step (updates
/// done so far). Numbers are Accumulator<Real>: nothing of a run in bfloat16 is lost.
/// @throws Error(data)
template <typename Real>
void save_checkpoint(const std::string& path, const Parameters<Real>& parameters,
                     std::int64_t step);

std::string checkpoint_name(std::int64_t step);  ///< "step-00000010.h5"

}  // namespace cadenza::model
