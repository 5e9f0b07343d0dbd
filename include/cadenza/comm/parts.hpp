// SPDX-License-Identifier: Apache-2.0
// Collectives whose ranks have parts of different sizes: where each part lies, and the check of a
// call.
#pragma once

#include <cstdint>
#include <span>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"

namespace cadenza::comm {

/// What one rank brings to such a call: sizes of its part, of all parts together, and whose it is.
struct PartSizes {
  std::size_t mine = 0;
  std::size_t all = 0;
  int rank = 0;
  int ranks = 1;
};

/// @throws Error(communication) when counts do not describe the two buffers.
inline void check_parts(const char* call, std::span<const std::int64_t> counts,
                        const PartSizes& sizes) {
  if (counts.size() != static_cast<std::size_t>(sizes.ranks)) {
    fail(ExitCode::communication, "{}: {} counts for {} ranks", call, counts.size(), sizes.ranks);
  }
  std::uint64_t total = 0;
  for (const std::int64_t count : counts) {
    if (count < 0) fail(ExitCode::communication, "{}: a count of {}", call, count);
    total += static_cast<std::uint64_t>(count);
  }
  const auto own = static_cast<std::uint64_t>(counts[at(sizes.rank)]);
  if (total != sizes.all || own != sizes.mine) {
    fail(ExitCode::communication,
         "{}: rank {} has {} of {} elements, where the counts say {} of {}", call, sizes.rank,
         sizes.mine, sizes.all, own, total);
  }
}

/// Calls each(rank, offset, count) for every rank's part in turn.
template <typename Each>
void for_each_part(std::span<const std::int64_t> counts, Each each) {
  std::size_t offset = 0;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    const auto count = static_cast<std::size_t>(counts[rank]);
    each(static_cast<int>(rank), offset, count);
    offset += count;
  }
}

}  // namespace cadenza::comm
