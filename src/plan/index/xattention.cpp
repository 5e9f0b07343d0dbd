// SPDX-License-Identifier: Apache-2.0
// XAttention: the owner of some rows of a head gets their queries and all keys before their end,
// and chooses the pattern without others.
#include <algorithm>
#include <cmath>

#include "plan/index/method.hpp"

namespace cadenza::plan {
namespace {

/// Rows, in whole blocks, of the n-th of `shares` parts of a causal triangle with equal areas.
Range area_of(std::int64_t length, std::int64_t block, std::size_t n, std::size_t shares) {
  const std::int64_t rows = (length + block - 1) / block;
  const auto at = [&](std::size_t i) {
    const double share = static_cast<double>(i) / static_cast<double>(shares);
    const std::int64_t row = std::llround(static_cast<double>(rows) * std::sqrt(share));
    return std::min(row * block, length);
  };
  return {at(n), at(n + 1)};
}

OwnedIndex owned_rows(const Workload& workload, const IndexParts& parts, std::size_t holder) {
  const auto heads = static_cast<std::size_t>(workload.shape.heads);
  const std::size_t shares = parts.holders.size() / heads;
  if (shares < 2) return owned_heads(workload, parts, holder);
  if (holder >= heads * shares) return {};
  const auto head = static_cast<std::int64_t>(holder / shares);
  return {{head, head + 1},
          area_of(length_of(workload, parts), workload.sparse.block, holder % shares, shares)};
}

std::vector<IndexNeed> needed_rows(const Workload& workload, const IndexParts& parts,
                                   std::size_t holder, IndexRound round) {
  const OwnedIndex owned = owned_rows(workload, parts, holder);
  if (round != IndexRound::observed || owned.empty()) return {};
  return {{Tensor::observed, owned.tokens, owned.heads},
          {Tensor::observed_keys, {0, owned.tokens.end}, workload.shape.key_heads(owned.heads)}};
}

cost::IndexWork work_on_rows(const Workload& workload, const IndexParts& parts, std::size_t holder,
                             IndexRound round) {
  const OwnedIndex owned = owned_rows(workload, parts, holder);
  if (round != IndexRound::observed || owned.empty()) return {};
  const auto area = [&](std::int64_t side) {  // squares of that side in the owned rows
    const auto triangle = [&](std::int64_t tokens) {
      const auto count = static_cast<double>((tokens + side - 1) / side);
      return count * (count + 1) / 2;
    };
    return static_cast<double>(owned.heads.size()) *
           (triangle(owned.tokens.end) - triangle(owned.tokens.begin));
  };
  const std::int64_t stride = workload.sparse.stride;
  return {.flops = 2.0 * workload.shape.head_dim * static_cast<double>(stride) * area(stride),
          .scores = 2 * area(stride),
          .masses = area(workload.sparse.block)};
}

}  // namespace

const IndexMethod kXAttention = {owned_rows, needed_rows, work_on_rows, true, false};

}  // namespace cadenza::plan
