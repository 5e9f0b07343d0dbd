// SPDX-License-Identifier: Apache-2.0
// Loops of the model's kernels over rows and columns: a row belongs to a team; its columns are
// lanes of vector instructions on the host and the team's threads on a device. Sums over them do
// not depend on the number of threads.
#pragma once

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstdint>

#include "cadenza/kernels/device.hpp"
#include "cadenza/kernels/simd.hpp"
#include "cadenza/model/shape/activations.hpp"

namespace cadenza::model {

using Team = Kokkos::TeamPolicy<Device>::member_type;

/// Rows per team, one after another. On the host they amortise the cost of starting a team.
inline constexpr std::int64_t kTeamRows = kDeviceIsCuda ? 1 : 32;
/// Elements of a flat array per team: a few pages, so that streams are long.
inline constexpr std::int64_t kTeamElements = kDeviceIsCuda ? 1024 : 4096;

/// Returns the policy of teams. On the host a team is one thread, whose vector instructions take
/// all columns.
inline Kokkos::TeamPolicy<Device> teams(std::int64_t items, std::int64_t per_team) {
  const int count = static_cast<int>((items + per_team - 1) / per_team);
  if (kDeviceIsCuda) return {count, Kokkos::AUTO};
  return {count, 1};
}

/// Calls f(c) for c in [0, width).
template <typename F>
KOKKOS_INLINE_FUNCTION void for_columns(const Team& team, std::int64_t width, const F& f) {
  if constexpr (kDeviceIsCuda) {
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, width), f);
  } else {
    CADENZA_SIMD()
    for (std::int64_t c = 0; c < width; ++c) f(c);
  }
}

/// Returns the sum of f(c) in double, known to the whole team.
template <typename F>
KOKKOS_INLINE_FUNCTION double sum_columns(const Team& team, std::int64_t width, const F& f) {
  double sum = 0;
  if constexpr (kDeviceIsCuda) {
    Kokkos::parallel_reduce(
        Kokkos::TeamThreadRange(team, width),
        [&](const std::int64_t c, double& part) { part += f(c); }, sum);
  } else {
    CADENZA_SIMD(reduction(+ : sum))
    for (std::int64_t c = 0; c < width; ++c) sum += f(c);
  }
  return sum;
}

/// Returns the largest f(c), NaN ignored, known to the whole team.
template <typename Sum, typename F>
KOKKOS_INLINE_FUNCTION Sum largest_column(const Team& team, std::int64_t width, const F& f) {
  Sum largest = Kokkos::Experimental::finite_min_v<Sum>;
  if constexpr (kDeviceIsCuda) {
    Kokkos::parallel_reduce(
        Kokkos::TeamThreadRange(team, width),
        [&](const std::int64_t c, Sum& top) { top = f(c) > top ? f(c) : top; },
        Kokkos::Max<Sum>(largest));
  } else {
    CADENZA_SIMD(reduction(max : largest))
    for (std::int64_t c = 0; c < width; ++c) largest = f(c) > largest ? f(c) : largest;
  }
  return largest;
}

/// Runs row by row in teams.
template <typename F>
struct RowLoop {
  F f;
  std::int64_t rows;
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t first = team.league_rank() * kTeamRows;
    const std::int64_t last = first + kTeamRows < rows ? first + kTeamRows : rows;
    for (std::int64_t row = first; row < last; ++row) f(team, row);
  }
};

/// Calls f(team, row) for row in [0, rows).
template <typename F>
void for_rows(const char* label, std::int64_t rows, const F& f) {
  launch(label, teams(rows, kTeamRows), RowLoop<F>{f, rows});
}

template <typename F>
struct ElementLoop {
  F f;
  std::int64_t count;
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t first = team.league_rank() * kTeamElements;
    const std::int64_t length = first + kTeamElements < count ? kTeamElements : count - first;
    const F& each = f;
    for_columns(team, length, [=](const std::int64_t i) { each(first + i); });
  }
};

/// Calls f(i) for i in [0, count), in any order.
template <typename F>
void for_elements(const char* label, std::int64_t count, const F& f) {
  launch(label, teams(count, kTeamElements), ElementLoop<F>{f, count});
}

/// Returns e^x in a form that compilers vectorise. Relative error below 1.3e-7 in [-87, 88]; 0
/// below -87 (where floats become subnormal), infinity above 88.8; NaN stays NaN, e^0 is 1.
KOKKOS_INLINE_FUNCTION float exponential(float x) {
  if constexpr (kDeviceIsCuda) return Kokkos::exp(x);
  // x = n ln 2 + r with |r| <= ln(2) / 2. Adding 1.5 * 2^23 rounds n to an integer in the low bits.
  constexpr float kRound = 12582912.0f;
  constexpr std::uint32_t kRoundBits = 0x4B400000u;
  float y = x < -87.0f ? -87.0f : x;
  y = y > 89.0f ? 89.0f : y;
  const float rounded = y * 1.44269504f + kRound;
  const float n = rounded - kRound;
  const float r = (y - n * 0.693359375f) + n * 2.12194440e-4f;
  // (e^r - 1 - r) / r^2, interpolated in Chebyshev points; truncation error 1.1e-8 of e^r.
  float p = r * 1.392625083e-3f + 8.363232884e-3f;
  p = p * r + 4.166655421e-2f;
  p = p * r + 1.666657667e-1f;
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  const std::uint32_t exponent = (Kokkos::bit_cast<std::uint32_t>(rounded) - (kRoundBits - 127u))
                                 << 23;
  const float power = p * Kokkos::bit_cast<float>(exponent);
  return x < -87.0f ? 0.0f : power;
}
KOKKOS_INLINE_FUNCTION double exponential(double x) {
  return Kokkos::exp(x);
}

// --- Sums over rows, column by column: of blocks of rows, then over the blocks in their order ---

/// Bounds the additions per column on a device, where columns are fewer than threads.
inline constexpr std::int64_t kMostRowBlocks = 512;

/// Rows of a block, by their number alone.
inline std::int64_t block_rows(std::int64_t rows) {
  if (!kDeviceIsCuda) return kNormBlockRows;
  return std::max(kNormBlockRows, (rows + kMostRowBlocks - 1) / kMostRowBlocks);
}

/// Sums a team's block of rows: add(row, partial) for each, partial [width] begins with zeros.
template <typename Sum, typename Add>
KOKKOS_INLINE_FUNCTION void sum_row_block(const Team& team, std::int64_t rows,
                                          std::int64_t block_rows, std::int64_t width,
                                          Sum* partials, const Add& add) {
  const std::int64_t first = team.league_rank() * block_rows;
  const std::int64_t last = first + block_rows < rows ? first + block_rows : rows;
  Sum* partial = partials + team.league_rank() * width;
  for_columns(team, width, [=](const std::int64_t c) { partial[c] = 0; });
  for (std::int64_t row = first; row < last; ++row) add(row, partial);
}

/// Adds the sums of all blocks of `rows` rows, partials [blocks, width], to `to` [width].
template <typename Sum>
void add_row_blocks(const char* label, std::int64_t rows, std::int64_t width, const Sum* partials,
                    Sum* to) {
  const std::int64_t blocks = (rows + block_rows(rows) - 1) / block_rows(rows);
  for_elements(
      label, width, KOKKOS_LAMBDA(const std::int64_t c) {
        double sum = 0;
        for (std::int64_t block = 0; block < blocks; ++block) {
          sum += static_cast<double>(partials[block * width + c]);
        }
        to[c] += static_cast<Sum>(sum);
      });
}

// --- Sums whose number of items alone determines the blocks, added in block order ---

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
