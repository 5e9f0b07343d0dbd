// SPDX-License-Identifier: Apache-2.0
// Traces of short steps: while others may read, a chunk that is rewritten leaves its old place
// unused, and where a step has few rows, most chunks are rewritten several times.
#pragma once

#include <cstdint>
#include <string>

namespace cadenza::trace {

/// Bytes of a trace without unused places, about.
/// @param rows_bytes  what its datasets need
std::uint64_t compact_size(std::uint64_t rows_bytes);

/// Copies a closed trace to <path>.compact, without unused places.
/// @return whether there was room for the copy; without it nothing is left
bool copy_compact(const std::string& path);

/// Puts such a copy of a closed trace in its place, where unused places are a tenth of it or more.
/// It takes its name at once or not at all: where there is no room for it the trace stays as it is.
void compact(const std::string& path, std::uint64_t rows_bytes);

}  // namespace cadenza::trace
