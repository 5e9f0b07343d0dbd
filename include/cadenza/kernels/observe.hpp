// SPDX-License-Identifier: Apache-2.0
// What the last queries of a document attend to: the scores from which vertical-slash attention
// chooses its pattern (SparseRule). Runs on the host, on host memory.
//
// Three passes over the same jobs, with a sum over ranks behind each: the largest logit of every
// query, the sum of e^(logit - largest), and the share of every key and diagonal. The largest is
// exact and the sums are of integers, so that no order and no cut of the keys changes a bit.
#pragma once

#include <cstdint>
#include <span>

#include "cadenza/base/sparse_rule.hpp"
#include "cadenza/kernels/bfloat16.hpp"

namespace cadenza::kernels {

/// Observed queries of one head: a lane each.
inline constexpr int kObserved = SparseRule::kObserved;

/// Steps of 1 in which sums of e^(logit - largest) count.
inline constexpr double kSumUnit = 1 << 30;

/// Some keys of one document and one query head.
template <typename Real>
struct ObserveJob {
  using Sum = Accumulator<Real>;
  const Sum* queries = nullptr;  ///< [head_dim, kObserved], rotated, times 1 / sqrt(head_dim)
  int rows = 0;                  ///< lanes that are queries; the others hold zeros
  std::int64_t first_query = 0;  ///< text position of lane 0; lane i is i further
  const Real* keys = nullptr;    ///< rotated; those of this head, one every `stride` elements
  std::int64_t stride = 0;
  std::int64_t count = 0;      ///< of keys
  std::int64_t first_key = 0;  ///< text position
  std::int64_t step = 1;       ///< from one key to the next in the text

  Sum* scores = nullptr;             ///< [count, kObserved] kept from pass to pass
  Sum* peak = nullptr;               ///< [kObserved] pass 1 raises it; pass 2 reads all ranks'
  std::int64_t* sum = nullptr;       ///< [kObserved] pass 2 adds; steps of 1 / kSumUnit
  const Sum* factor = nullptr;       ///< [kObserved] pass 3: kMassUnit * kSumUnit / all ranks' sum
  std::uint32_t* columns = nullptr;  ///< [count] pass 3 assigns
  std::uint32_t* slashes = nullptr;  ///< pass 3 adds; by diagonal, from diagonals(job).begin on
};

/// Diagonals i - j of a job, which may begin below 0: no query sees those keys.
template <typename Real>
Range diagonals(const ObserveJob<Real>& job) {
  return {job.first_query - job.first_key - (job.count - 1) * job.step,
          job.first_query + kObserved - job.first_key};
}

/// Jobs may share `queries` and `factor`; they run on all threads.
template <typename Real>
void observe_logits(int head_dim, std::span<const ObserveJob<Real>> jobs);
template <typename Real>
void observe_sums(std::span<const ObserveJob<Real>> jobs);
template <typename Real>
void observe_masses(std::span<const ObserveJob<Real>> jobs);

}  // namespace cadenza::kernels
