// SPDX-License-Identifier: Apache-2.0
// The index of sparse attention in a plan: who holds keys, who decides, what each needs, and the
// rounds of messages that follow.
#pragma once

#include <array>
#include <vector>

#include "cadenza/cost/rates.hpp"
#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

/// Of one document that is not dense.
struct IndexParts {
  int document = 0;
  std::vector<Home> homes;    ///< all of the document
  std::vector<Rank> holders;  ///< ranks that hold keys, ascending
  /// The number of a rank among the holders; -1: it holds nothing.
  int holder(Rank rank) const;
};

/// Of all documents that are not dense.
std::vector<IndexParts> index_parts(const Workload& workload);

/// What a holder chooses and keeps: the pattern of some query heads and rows. Rows are tokens in
/// the text, whole blocks.
struct OwnedIndex {
  Range heads;
  Range tokens;
  bool empty() const { return heads.empty() || tokens.empty(); }
};

/// Heads are divided among the holders; with some kinds so are the rows of a head, where there are
/// more holders than heads.
OwnedIndex owned_index(const Workload& workload, const IndexParts& parts, std::size_t holder);

/// Rows that a holder has when the messages of a round are there, each once: its own and those that
/// the ranks at home have sent.
struct IndexNeed {
  Tensor what;
  Range tokens;  ///< in the text
  Range heads;   ///< of `what`
};
std::vector<IndexNeed> index_needs(const Workload& workload, const IndexParts& parts,
                                   std::size_t holder, IndexRound round);

/// Whether every holder tells every other something in a round that belongs to no token.
bool tells_all(const Workload& workload, IndexRound round);

/// The tokens of a home that stand in a range of the text, as few ranges as possible.
std::vector<Home> within_text(const Workload& workload, const Home& home, Range text);

/// What a rank computes when the messages of a round are there.
cost::IndexWork index_work(const Workload& workload, const IndexParts& parts, std::size_t holder,
                           IndexRound round);

/// vertical_slash: of keys of one head that observed queries look at, or of which an owner chooses
/// (IndexRound::mass).
cost::IndexWork vertical_slash_work(IndexRound round, double keys, int head_dim);

/// By round: whether a rank computes something when its messages are there.
std::array<bool, kIndexRounds> works_in(const Workload& workload, Rank rank);

/// vertical_slash: the diagonals i - j >= 0 from observed queries to the keys `tokens`.
Range observed_diagonals(const Workload& workload, int document, Range tokens);

// Who tells whom what, so that an index of sparse attention comes about: the rounds of a plan.

/// Bytes of a move of an index round.
/// @param tokens  observed, observed_keys, mass: as the plan counts them; pattern: in the text
std::int64_t index_bytes(const Workload& workload, Tensor what, int document, Range tokens,
                         Range heads);

/// Fills the index rounds of a forward plan, whose tasks say who needs which pattern; none where
/// all documents are dense. Its totals are to be added up again.
void add_index_rounds(Plan& plan);

}  // namespace cadenza::plan
