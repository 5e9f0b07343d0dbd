// SPDX-License-Identifier: Apache-2.0
// How a kind of sparse attention makes its index: which patterns each holder owns, needs and
// computes. The moves of an index and the rule that checks them follow. Each kind has one file.
#pragma once

#include "cadenza/plan/index.hpp"

namespace cadenza::plan {

struct IndexMethod {
  OwnedIndex (*owned)(const Workload& workload, const IndexParts& parts, std::size_t holder);
  std::vector<IndexNeed> (*needs)(const Workload& workload, const IndexParts& parts,
                                  std::size_t holder, IndexRound round);
  cost::IndexWork (*work)(const Workload& workload, const IndexParts& parts, std::size_t holder,
                          IndexRound round);
  bool gathers_keys;  ///< round `observed` moves keys as well as queries
  bool tells_all;     ///< in rounds `peak` and `sum` every holder sends to every other
};

extern const IndexMethod kVerticalSlash;
extern const IndexMethod kXAttention;

const IndexMethod& index_method(const Workload& workload);

/// Divides the heads among the holders, each with all rows.
OwnedIndex owned_heads(const Workload& workload, const IndexParts& parts, std::size_t holder);

std::int64_t length_of(const Workload& workload, const IndexParts& parts);

}  // namespace cadenza::plan
