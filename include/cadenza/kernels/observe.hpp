// SPDX-License-Identifier: Apache-2.0
// Scores from which sparse attention chooses its pattern (SparseRule). Runs on the host, on host
// memory.
//
// Vertical-slash attention observes the last queries of a document, in three passes over the same
// jobs, each followed by a reduction over ranks: the largest logit of every query, the sum of
// e^(logit - largest), and the share of every key and diagonal. The largest is exact and the sums
// are integers, so neither order nor partition of the keys changes a bit. The second and third pass
// need a finite largest logit of every query.
#pragma once

#include <cstdint>
#include <span>

#include "cadenza/base/sparse_pattern.hpp"
#include "cadenza/kernels/bfloat16.hpp"

namespace cadenza::kernels {

/// Observed queries of one head: a lane each.
inline constexpr int kObserved = SparseRule::kObserved;

/// Sums of e^(logit - largest) are counted in steps of 1 / kSumUnit.
inline constexpr double kSumUnit = 1 << 30;

/// Returns the larger of two logits; NaN if one is NaN.
template <typename Sum>
Sum larger_logit(Sum a, Sum b) {
  return a < b || b != b ? b : a;
}

/// Some keys of one document and one query head.
template <typename Real>
struct ObserveJob {
  using Sum = Accumulator<Real>;
  const Sum* queries = nullptr;  ///< [head_dim, kObserved], rotated, times 1 / sqrt(head_dim)
  int rows = 0;                  ///< lanes that are queries; the others hold zeros
  std::int64_t first_query = 0;  ///< text position of lane 0; lane i follows i positions later
  const Real* keys = nullptr;    ///< rotated keys of this head, one every `stride` elements
  std::int64_t stride = 0;
  std::int64_t count = 0;      ///< number of keys
  std::int64_t first_key = 0;  ///< text position
  std::int64_t step = 1;       ///< text positions from one key to the next

  Sum* scores = nullptr;  ///< [count, kObserved] kept between passes
  Sum* peak = nullptr;    ///< [kObserved] pass 1 raises it; pass 2 reads the maximum of all ranks;
                          ///< NaN stays NaN
  std::int64_t* sum = nullptr;       ///< [kObserved] pass 2 adds, in steps of 1 / kSumUnit
  const Sum* factor = nullptr;       ///< [kObserved] pass 3: kMassUnit * kSumUnit / all ranks' sum
  std::uint32_t* columns = nullptr;  ///< [count] pass 3 assigns
  std::uint32_t* slashes = nullptr;  ///< pass 3 adds; by diagonal, from diagonals(job).begin
};

/// Diagonals i - j of a job. They may begin below 0, where no query sees the key.
template <typename Real>
Range diagonals(const ObserveJob<Real>& job) {
  return {job.first_query - job.first_key - (job.count - 1) * job.step,
          job.first_query + kObserved - job.first_key};
}

/// XAttention: some rows of blocks of one document and query head. Queries and keys are cut into
/// groups of `stride` tokens; the logit of two groups is the sum of q_i . k_j / sqrt(head_dim) over
/// the antidiagonal of their square, divided by `stride`; its softmax runs over the groups of keys
/// up to the query group's own, which counts without a mask inside. The mass of a block is the sum
/// over its groups. Tokens behind the end of the document count as zeros.
template <typename Real>
struct BlockJob {
  const Real* queries = nullptr;  ///< rotated; from the first row's first token, one every
                                  ///< `query_stride` elements
  std::int64_t query_stride = 0;
  std::int64_t count = 0;      ///< number of queries: those of the rows that the document has
  std::int64_t first_row = 0;  ///< number of the first row
  const Real* keys = nullptr;  ///< [tokens, head_dim], rotated, from the document's first token on;
                               ///< zeros behind its end, up to a multiple of the stride
  std::uint32_t* masses = nullptr;  ///< [rows, first_row + rows] assigned, steps of 1 / kMassUnit
                                    ///< for each group of queries; 0 where the row sees no key
};

/// Largest number of rows of blocks in a job.
inline std::int64_t most_rows(std::int64_t block, std::int64_t stride) {
  return kObserved * stride / block;
}

/// Computes the masses of all jobs on all threads, each job on one. @returns false if a query's
/// largest logit is not finite; the masses are then unspecified
template <typename Real>
[[nodiscard]] bool observe_blocks(int head_dim, std::int64_t block, std::int64_t stride,
                                  std::span<const BlockJob<Real>> jobs);

/// Run the three passes on all threads. Jobs may share `queries` and `factor`.
template <typename Real>
void observe_logits(int head_dim, std::span<const ObserveJob<Real>> jobs);
template <typename Real>
void observe_sums(std::span<const ObserveJob<Real>> jobs);
template <typename Real>
void observe_masses(std::span<const ObserveJob<Real>> jobs);

}  // namespace cadenza::kernels
