// SPDX-License-Identifier: Apache-2.0
// What an index exchange knows of a tick: its sparse documents, this rank's keys of them, and what
// becomes of a head in the order of the rounds.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cadenza/exec/exchange.hpp"
#include "cadenza/exec/index_exchange.hpp"

namespace cadenza::exec {

inline std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

/// A run of this rank's keys of a document.
struct KeyRun {
  plan::TextRun text;
  std::int64_t row = 0;   ///< of its first key among this rank's rows
  std::int64_t held = 0;  ///< of its first key among this rank's keys of the document
  std::size_t home = 0;   ///< of this rank's homes of the document
};

/// What becomes of one head of a document, in the order of the rounds.
template <typename Real>
struct IndexExchange<Real>::Head {
  std::vector<Sum> queries;  ///< [head_dim, kObserved]
  std::vector<Sum> scores;   ///< [keys held, kObserved]
  std::vector<Sum> peak;     ///< [kObserved] of all ranks so far
  std::vector<std::int64_t> sum;
  std::vector<Sum> factor;
  ObservedMass mass;                                ///< of an owned head: of the whole document
  std::vector<std::uint32_t> columns;               ///< [keys held]
  std::vector<std::vector<std::uint32_t>> slashes;  ///< by home of this rank
};

template <typename Real>
struct IndexExchange<Real>::Document {
  plan::IndexParts parts;
  std::int64_t length = 0;
  Range owned;  ///< heads
  std::vector<KeyRun> runs;
  std::vector<plan::Home> homes;  ///< of this rank
  std::int64_t keys = 0;          ///< held
  std::vector<Head> heads;
  bool holds() const { return keys > 0; }
  int rows() const { return static_cast<int>(parts.observed.size()); }
};

/// Pairs by document and head of a tick, over the layers of a step.
template <typename Real>
struct IndexExchange<Real>::Counts {
  std::vector<std::int64_t> expected;  ///< of the patterns that this rank owns
  std::vector<std::int64_t> computed;  ///< by this rank's tasks
};

template <typename Real>
struct IndexExchange<Real>::Tick {
  const program::TickPlans* plans = nullptr;
  HomeRows home;
  int group = 0;                    ///< number of the first document of this rank's group
  std::vector<Document> documents;  ///< sparse ones
  std::array<Counts, 2> counts;     ///< by pass
};

}  // namespace cadenza::exec
