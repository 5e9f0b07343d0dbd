// SPDX-License-Identifier: Apache-2.0
// The index of sparse attention in a plan: which ranks hold keys, which choose patterns, what each
// needs, and the rounds of messages that follow.
#pragma once

#include <array>
#include <vector>

#include "cadenza/cost/rates.hpp"
#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

/// The ranks that take part in the index of one document that is not dense.
struct IndexParts {
  int document = 0;
  std::vector<Home> homes;    ///< all homes of the document
  std::vector<Rank> holders;  ///< ranks that hold keys, ascending
  /// Index of a rank in `holders`; -1 where it holds no keys.
  int holder(Rank rank) const;
};

/// The parts of every document that is not dense.
std::vector<IndexParts> index_parts(const Workload& workload);

/// The query heads and rows whose pattern a holder chooses and keeps. Rows are positions in the
/// text, in whole blocks.
struct OwnedIndex {
  Range heads;
  Range tokens;
  bool empty() const { return heads.empty() || tokens.empty(); }
};

/// The part that a holder owns. Heads are divided among the holders; some kinds also divide the
/// rows of a head, where there are more holders than heads.
OwnedIndex owned_index(const Workload& workload, const IndexParts& parts, std::size_t holder);

/// Rows that a holder has once the messages of a round have arrived, each once: its own and those
/// that other holders sent from their homes. None where the document's pattern is reused.
struct IndexNeed {
  Tensor what;
  Range tokens;  ///< positions in the text
  Range heads;   ///< of `what`
};
std::vector<IndexNeed> index_needs(const Workload& workload, const IndexParts& parts,
                                   std::size_t holder, IndexRound round);

/// Whether every holder sends every other a message in this round that belongs to no token.
bool tells_all(const Workload& workload, const IndexParts& parts, IndexRound round);

/// The tokens of a home that lie in a range of the text, in as few ranges as possible.
std::vector<Home> within_text(const Workload& workload, const Home& home, Range text);

/// The work of a rank once the messages of a round have arrived.
cost::IndexWork index_work(const Workload& workload, const IndexParts& parts, std::size_t holder,
                           IndexRound round);

/// vertical_slash: the work of a round.
/// @param keys  keys, summed over heads, that observed queries see or, in IndexRound::mass, that an
///              owner chooses from
cost::IndexWork vertical_slash_work(IndexRound round, double keys, int head_dim);

/// By round: whether a rank has work once its messages have arrived.
std::array<bool, kIndexRounds> works_in(const Workload& workload, Rank rank);

/// vertical_slash: the diagonals i - j >= 0 from observed queries to the keys `tokens`.
Range observed_diagonals(const Workload& workload, int document, Range tokens);

// --- The messages of the rounds ---

/// Bytes of a move of an index round.
/// @param tokens  observed, observed_keys, mass: counts of the plan; pattern: positions in the text
std::int64_t index_bytes(const Workload& workload, Tensor what, int document, Range tokens,
                         Range heads);

/// Fills the index rounds of a forward plan from its tasks, which say which server needs which
/// pattern; none where all documents are dense. Callers must add up the plan's totals again.
void add_index_rounds(Plan& plan);

}  // namespace cadenza::plan
