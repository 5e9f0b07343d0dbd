// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "cadenza/base/recall.hpp"
#include "cadenza/comm/communicator.hpp"
#include "exec/attention/index_estimator.hpp"

namespace cadenza::exec {

/// The rows of a context group in one layer.
template <typename Real>
struct RecallInputs {
  const AttentionShape& shape;
  const kernels::RotaryTable<Accumulator<Real>>& rotary;
  const plan::Workload& workload;
  /// Sparse documents of the group, in the same order on all its ranks.
  std::vector<const IndexDocument*> documents;
  std::uint64_t seed = 0;   ///< of the choice of queries; the same on all ranks
  const Real* q = nullptr;  ///< this rank's rows in the model's buffers
  const Real* k = nullptr;  ///< the same; rotated
  /// Returns the pattern of a document and a head that this rank owns.
  std::function<const SparsePattern&(const IndexDocument&, std::int64_t head)> pattern_of;
};

/// Measures what patterns keep of the attention of random queries, for every kind and placement
/// alike: each rank computes its keys' share. Collective over the ranks of a context group. Only
/// the first rank's numbers are not 0, so that a sum over ranks counts every query once.
template <typename Real>
Recall measure_recall(comm::Communicator& group, const RecallInputs<Real>& inputs);

}  // namespace cadenza::exec
