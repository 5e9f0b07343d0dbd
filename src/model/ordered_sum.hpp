// SPDX-License-Identifier: Apache-2.0
// Sums over rows or elements that do not depend on the number of threads: the number of items alone
// determines the blocks, and their sums are added in block order.
#pragma once

#include "model/vector_loops.hpp"

namespace cadenza::model {

/// Bounds the stored sums and the time to add them.
inline constexpr std::int64_t kMostBlocks = 1024;

/// Returns device memory for kMostBlocks sums; kept, so that a step allocates nothing.
double* block_sums();

/// Returns the sum of the first `blocks` of block_sums(), in their order.
double add_block_sums(std::int64_t blocks);

template <typename F>
struct BlockSum {
  F sum_of;
  std::int64_t items, per_block;
  double* sums;
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t first = team.league_rank() * per_block;
    const std::int64_t last = first + per_block < items ? first + per_block : items;
    const double sum = sum_of(team, first, last);
    double* to = sums + team.league_rank();
    Kokkos::single(Kokkos::PerTeam(team), [=]() { *to = sum; });
  }
};

/// Returns the sum over [0, items), in blocks of at least `least` items if there are as many.
/// @param sum_of  (team, first, last) -> sum over [first, last), known to the whole team
template <typename F>
double ordered_sum(const char* label, std::int64_t items, std::int64_t least, const F& sum_of) {
  const std::int64_t even = (items + kMostBlocks - 1) / kMostBlocks;
  const std::int64_t per_block = even > least ? even : least;
  launch(label, teams(items, per_block), BlockSum<F>{sum_of, items, per_block, block_sums()});
  return add_block_sums((items + per_block - 1) / per_block);
}

}  // namespace cadenza::model
