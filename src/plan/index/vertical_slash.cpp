// SPDX-License-Identifier: Apache-2.0
// Vertical-slash attention: all holders of a document's keys compute with its last queries; the
// owner of a head gets the masses of all keys and chooses the pattern.
#include "plan/index/method.hpp"

namespace cadenza::plan {
namespace {

std::vector<IndexNeed> needed_masses(const Workload& workload, const IndexParts& parts,
                                     std::size_t holder, IndexRound round) {
  const std::int64_t length = length_of(workload, parts);
  if (round == IndexRound::observed) {
    return {{Tensor::observed, SparseRule::observed(length), {0, workload.shape.heads}}};
  }
  const OwnedIndex owned = owned_heads(workload, parts, holder);
  if (round == IndexRound::mass && !owned.empty()) {
    return {{Tensor::mass, {0, length}, owned.heads}};
  }
  return {};
}

cost::IndexWork work_on_keys(const Workload& workload, const IndexParts& parts, std::size_t holder,
                             IndexRound round) {
  const OwnedIndex owned = owned_heads(workload, parts, holder);
  double keys = 0;  // summed over heads: all keys at home, or all keys of owned heads
  for (const Home& home : parts.homes) {
    if (home.rank != parts.holders[holder] && round != IndexRound::mass) continue;
    keys += static_cast<double>(home.tokens.size()) * (round == IndexRound::mass
                                                           ? static_cast<double>(owned.heads.size())
                                                           : workload.shape.heads);
  }
  return vertical_slash_work(round, keys, workload.shape.head_dim);
}

}  // namespace

cost::IndexWork vertical_slash_work(IndexRound round, double keys, int head_dim) {
  constexpr double kScores = SparseRule::kObserved;  // scores per key
  switch (round) {
    case IndexRound::observed:
      return {.flops = keys * kScores * 2 * head_dim};
    case IndexRound::peak:
    case IndexRound::sum:
      return {.scores = keys * kScores};
    case IndexRound::mass:
      return {.masses = keys * 2};  // one of the key, one of its diagonal
    case IndexRound::pattern:
      break;
  }
  return {};
}

const IndexMethod kVerticalSlash = {owned_heads, needed_masses, work_on_keys, false, true};

}  // namespace cadenza::plan
