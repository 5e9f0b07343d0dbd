// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "cadenza/base/sparse_pattern.hpp"
#include "cadenza/comm/communicator.hpp"
#include "exec/attention/index_estimator.hpp"

namespace cadenza::exec {

/// Patterns that one step chooses for later ones (attention.sparse.refresh): by layer, those of the
/// first document of each length. Every rank of a pool has all of them, as the next document of a
/// length may have its home anywhere.
class KeptPatterns {
 public:
  /// The sparse documents of a tick.
  struct Tick {
    const plan::Workload& workload;
    std::span<const IndexDocument> documents;
  };

  /// Begins a step that chooses. Marks the documents whose patterns are kept.
  /// @param heads  of this rank
  void begin(std::vector<Tick> ticks, int heads);
  /// Discards the ticks: the step keeps nothing.
  void skip() { ticks_.clear(); }
  /// Takes the pattern of an owned head.
  void note(int layer, int tick, const IndexDocument& document, std::int64_t head,
            const SparsePattern& pattern);
  /// Gives all ranks all patterns. Collective.
  /// @param layers  number of this rank's layers, as note() counts them
  void share(comm::Communicator& pool, int layers);
  /// Returns the pattern of a head of documents of this length. @throws Error(internal) without one
  const SparsePattern& of(int layer, std::int64_t length, std::int64_t head) const;

 private:
  struct Part;
  std::vector<Part> parts(int layers) const;

  std::vector<Tick> ticks_;
  int heads_ = 0;
  std::vector<std::pair<int, const IndexDocument*>> first_;  ///< by tick
  /// By layer, document and head: patterns of this rank's heads and rows.
  std::map<std::tuple<int, const IndexDocument*, std::int64_t>, SparsePattern> mine_;
  std::map<std::pair<int, std::int64_t>, std::vector<SparsePattern>> kept_;  ///< layer, length
};

}  // namespace cadenza::exec
