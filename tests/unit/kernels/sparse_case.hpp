// SPDX-License-Identifier: Apache-2.0
// Random patterns of dynamic sparse attention, and what attention by definition reads of them.
#pragma once

#include "unit/kernels/kernel_sets.hpp"

namespace cadenza::testing {

/// How many columns a random pattern draws: one in `share` of its tokens, at most.
inline constexpr std::int64_t kFewColumns = 6;
SparsePattern random_pattern(std::int64_t length, std::int64_t block, std::int64_t share,
                             std::mt19937_64& random);

/// A pattern for every document and head; for `dense` none for the first document.
SparseIndex random_index(const Case& of, std::int64_t block, bool dense, std::mt19937_64& random,
                         std::int64_t share = kFewColumns);

/// The case with a piece for every range of keys that a query sees in its tasks and its pattern:
/// what its definition reads.
Case by_pairs(Case of, const SparseIndex& index);

using Counts = std::vector<std::int64_t>;  ///< by document and head; 0 where it is dense

/// Pairs of what by_pairs returned.
Counts pairs_in(const Case& pairs, const SparseIndex& index);

/// Pairs of whole documents, as the index counts them.
Counts pairs_of(const SparseIndex& index);

template <typename Call>
auto with_index(const SparseIndex& index, Counts& pairs, const Call& call) {
  return [&index, &pairs, call](const auto& shape, const auto& rotary, const auto& list) {
    auto sparse = list;
    sparse.index = &index;
    sparse.pairs = pairs.data();
    call(shape, rotary, sparse);
    fence();
  };
}

/// The results, of so many pairs.
template <typename Real>
std::vector<DocumentResult> sparse_results(const Case& of, const SparseIndex& index,
                                           Kernels<Real> by, const Counts& pairs, int calls = 1) {
  Counts forward(pairs.size());
  Counts backward(pairs.size());
  by.forward = with_index(index, forward, by.forward);
  by.backward = with_index(index, backward, by.backward);
  const std::vector<DocumentResult> got = computed<Real>(of, calls, by);
  EXPECT_EQ(forward, pairs);
  EXPECT_EQ(backward, pairs);
  return got;
}

template <typename Real>
void expect_definition(const Case& of, const SparseIndex& index,
                       const std::vector<DocumentResult>& expected, const Kernels<Real>& by,
                       const Bounds& bounds) {
  expect_within(sparse_results<Real>(of, index, by, pairs_of(index), 2), expected, bounds);
}

}  // namespace cadenza::testing
