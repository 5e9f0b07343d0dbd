// SPDX-License-Identifier: Apache-2.0
// Gathers keys of a sparse pattern as contiguous rows.
#pragma once

#include <cstring>
#include <vector>

#include "../tasks/sparse_rows.hpp"
#include "rows.hpp"

namespace cadenza::kernels::cpu {

/// Appends the tokens of `keys` that are not columns of the pattern.
template <typename Real>
void add_keys_without_columns(const KeyRows<Real>& buffer, Range keys, const SparsePattern& pattern,
                              std::vector<std::int64_t>& tokens) {
  if (keys.empty()) return;
  const Range text = position_range(buffer, keys);
  auto column = std::ranges::lower_bound(pattern.columns(), text.begin);
  for (std::int64_t token = keys.begin; token < keys.end; ++token) {
    const std::int64_t at = position_of(buffer, token);
    while (column != pattern.columns().end() && *column < at) ++column;
    if (column == pattern.columns().end() || *column != at) tokens.push_back(token);
  }
}

/// Returns the rows of one head at ascending `tokens`: in place if they are contiguous, otherwise
/// copied to `room`, [tokens, dim] of Real.
template <typename Real>
Rows gather(const HeadRows& rows, const KeyRows<Real>& buffer, const Real* data,
            const std::vector<std::int64_t>& tokens, int head, int dim, float* room) {
  const Range all{tokens.front(), tokens.back() + 1};
  if (all.size() == std::ssize(tokens)) return rows.of_head(buffer, data, all, head);
  auto* to = reinterpret_cast<Real*>(room);
  const std::size_t bytes = static_cast<std::size_t>(dim) * sizeof(Real);
  const Rows from = rows.of_head(buffer, data, all, head);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::int64_t row = tokens[i] - all.begin;
    std::memcpy(to + static_cast<std::int64_t>(i) * dim,
                static_cast<const Real*>(from.data) + row * from.stride, bytes);
  }
  return {room, dim, static_cast<int>(tokens.size())};
}

}  // namespace cadenza::kernels::cpu
