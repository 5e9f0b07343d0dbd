// SPDX-License-Identifier: Apache-2.0
// Sums over rows or elements that do not depend on the number of threads: blocks are cut by the
// number of items alone, and their sums are added in the order of the blocks.
#pragma once

#include "model/vector_loops.hpp"

namespace cadenza::model {

/// Bounds what is kept, and the time to add it.
inline constexpr std::int64_t kMostBlocks = 1024;

/// A sum per block, kMostBlocks of them, on the device. Kept: nothing is allocated during a step.
double* block_sums();

/// The first `blocks` of block_sums(), added in their order.
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

/// Sum over [0, items), of at least `least` items a block where there are as many.
/// @param sum_of  (team, first, last) -> sum over [first, last), known to the whole team
template <typename F>
double ordered_sum(const char* label, std::int64_t items, std::int64_t least, const F& sum_of) {
  const std::int64_t even = (items + kMostBlocks - 1) / kMostBlocks;
  const std::int64_t per_block = even > least ? even : least;
  launch(label, teams(items, per_block), BlockSum<F>{sum_of, items, per_block, block_sums()});
  return add_block_sums((items + per_block - 1) / per_block);
}

}  // namespace cadenza::model
