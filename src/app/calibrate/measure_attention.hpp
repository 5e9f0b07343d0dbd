// SPDX-License-Identifier: Apache-2.0
// Measures one call of core attention, with the kernels of training.
#pragma once

#include <compare>
#include <cstdint>

#include "cadenza/attention/core_attention.hpp"
#include "cadenza/base/sparse_pattern.hpp"
#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/kernels/attention.hpp"
#include "cadenza/program/schedule.hpp"

namespace cadenza::app {

/// Tasks of one call: the last `queries` tokens of a document of `keys` tokens, for `count`
/// documents. Sparse tasks are whole documents.
struct AttentionCase {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t count = 1;
  Band band = Band::causal();
  std::int64_t block = 0;  ///< of a sparse pattern; 0: dense
  bool adjoining = false;  ///< its active blocks adjoin, and so do its columns
  friend auto operator<=>(const AttentionCase&, const AttentionCase&) = default;
};

/// Returns the pattern of a sparse case: an eighth of the pairs in slashes, which get denser
/// towards the diagonal, or follow it in one band, and a few columns.
SparsePattern pattern_of(const AttentionCase& work);

template <typename Real>
class AttentionMeasurement {
 public:
  using Sum = Accumulator<Real>;

  /// Makes room for calls of up to `tokens` keys in all.
  AttentionMeasurement(comm::Communicator& world, const config::Experiment& experiment,
                       std::int64_t tokens, MemoryLedger& ledger);

  /// Returns the seconds of the call. Collective.
  double seconds(const AttentionCase& work, program::Pass pass);

 private:
  kernels::TaskList<Real> list(const AttentionCase& work) const;

  comm::Communicator& world_;
  AttentionShape shape_;
  AttentionKernel kernel_;
  kernels::RotaryTable<Sum> rotary_;
  Array<Real> q_, k_, v_, dout_;
  Array<Sum> out_, lse_, delta_, dq_, dk_, dv_;
};

}  // namespace cadenza::app
