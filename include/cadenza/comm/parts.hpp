// SPDX-License-Identifier: Apache-2.0
// Collectives whose ranks have parts of different sizes: the place of each part, and checks.
#pragma once

#include <cstdint>
#include <span>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"

namespace cadenza::comm {

/// Sizes of one rank's part and of all parts together in such a call, and the rank.
struct PartSizes {
  std::size_t mine = 0;
  std::size_t all = 0;
  int rank = 0;
  int ranks = 1;
};

/// Checks the counts of a call. @throws Error(communication) if they do not describe both buffers
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
