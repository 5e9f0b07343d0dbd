// SPDX-License-Identifier: Apache-2.0
// The index of sparse attention in the files of cadenza attend (docs/attend.md).
#pragma once

#include <span>
#include <vector>

#include "attend_files.hpp"
#include "cadenza/base/sparse_index.hpp"
#include "cadenza/base/sparse_rule.hpp"
#include "cadenza/comm/communicator.hpp"

namespace cadenza::app {

/// The index that `file` has for the problem's documents and heads, and the rule says which of them
/// are dense. @throws Error(data) that names the dataset, what was found and what is valid
SparseIndex read_index(const storage::File& file, const AttendProblem& problem,
                       const SparseRule& rule);

/// @param patterns  [documents, heads], of length 0 where a document is dense
void write_index(storage::File& file, const SparseRule& rule,
                 std::span<const SparsePattern> patterns);

/// Every pattern on every rank, from the one rank that has it. Collective.
std::vector<SparsePattern> share_patterns(comm::Communicator& world, const AttendProblem& problem,
                                          const SparseRule& rule,
                                          std::span<const SparsePattern> mine);

}  // namespace cadenza::app
