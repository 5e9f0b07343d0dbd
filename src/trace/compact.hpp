// SPDX-License-Identifier: Apache-2.0
// Compaction of traces of short steps. Under SWMR a rewritten chunk leaves its old place unused,
// and with few rows per step most chunks are rewritten several times. Such traces have small
// chunks, to waste less; in large chunks the same rows take less space.
#pragma once

#include <cstdint>
#include <string>

namespace cadenza::trace {

/// Replaces a closed trace by a copy in large chunks without unused places, unless it is small or
/// less than a tenth of it is unused. The copy is renamed as a whole; where there is no room for
/// it, the trace stays as it is.
/// @param rows_bytes  bytes that its datasets need
void compact(const std::string& path, std::uint64_t rows_bytes);

}  // namespace cadenza::trace
