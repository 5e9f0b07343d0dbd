// SPDX-License-Identifier: Apache-2.0
// Traces of short steps: while others may read, a chunk that is rewritten leaves its old place
// unused, and where a step has few rows, most chunks are rewritten several times. Chunks are small
// there, to leave less behind; in large ones the same rows take less space.
#pragma once

#include <cstdint>
#include <string>

namespace cadenza::trace {

/// Copies a closed trace without unused places and in large chunks, unless it is small or unused
/// places are less than a tenth of it. The copy takes its name at once or not at all: where there
/// is no room for it the trace stays as it is.
/// @param rows_bytes  what its datasets need
void compact(const std::string& path, std::uint64_t rows_bytes);

}  // namespace cadenza::trace
