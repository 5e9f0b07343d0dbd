// SPDX-License-Identifier: Apache-2.0
// Lengths of synthetic documents: data.lengths.
#pragma once

#include <cstdint>
#include <vector>

#include "cadenza/config/experiment.hpp"

namespace cadenza::data {

/// Lengths (>= 1) of a synthetic corpus's documents, in order. `constant` and `list` give the
/// lengths they name, `file` those of its file, `histogram` what its rule draws; what the others
/// draw is clamped to [min, max], max 0 being data.max_document.
/// @throws Error(data): no documents; a file of lengths that is missing or malformed
std::vector<std::int64_t> synthetic_lengths(const config::Data& data, std::uint64_t seed);

}  // namespace cadenza::data
