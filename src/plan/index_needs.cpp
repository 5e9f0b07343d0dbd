// SPDX-License-Identifier: Apache-2.0
// What makes one way to choose an index different from another, for plans: who owns what, and what
// holders need for it in which round.
#include <algorithm>
#include <cmath>

#include "cadenza/plan/index.hpp"
#include "plan/workload/homes.hpp"

namespace cadenza::plan {
namespace {

std::int64_t length_of(const Workload& workload, const IndexParts& parts) {
  return workload.lengths[static_cast<std::size_t>(parts.document)];
}

/// The n-th of so many shares of [0, whole).
Range share_of(std::int64_t whole, std::size_t n, std::size_t shares) {
  const auto at = [&](std::size_t i) {
    return static_cast<std::int64_t>(i) * whole / static_cast<std::int64_t>(shares);
  };
  return {at(n), at(n + 1)};
}

/// Rows of a causal triangle, whole blocks: the n-th of so many parts of equal areas.
Range area_of(std::int64_t length, std::int64_t block, std::size_t n, std::size_t shares) {
  const std::int64_t rows = (length + block - 1) / block;
  const auto at = [&](std::size_t i) {
    const double share = static_cast<double>(i) / static_cast<double>(shares);
    const std::int64_t row = std::llround(static_cast<double>(rows) * std::sqrt(share));
    return std::min(row * block, length);
  };
  return {at(n), at(n + 1)};
}

bool observes_blocks(const Workload& workload) {
  return workload.sparse.kind == SparseKind::xattention;
}

}  // namespace

int IndexParts::holder(Rank rank) const {
  const auto found = std::ranges::lower_bound(holders, rank);
  if (found == holders.end() || *found != rank) return -1;
  return static_cast<int>(found - holders.begin());
}

std::vector<IndexParts> index_parts(const Workload& workload) {
  std::vector<IndexParts> all;
  if (workload.sparse.block == 0) return all;
  const Homes homes(workload);
  for (std::size_t document = 0; document < workload.lengths.size(); ++document) {
    if (workload.sparse.is_dense(workload.lengths[document])) continue;
    IndexParts& parts = all.emplace_back();
    parts.document = static_cast<int>(document);
    for (const Home& home : homes.of(parts.document)) {
      parts.homes.push_back(home);
      parts.holders.push_back(home.rank);
    }
    std::ranges::sort(parts.holders);
    const auto twice = std::ranges::unique(parts.holders);
    parts.holders.erase(twice.begin(), twice.end());
  }
  return all;
}

std::vector<Home> within_text(const Workload& workload, const Home& home, Range text) {
  const std::int64_t length = workload.lengths[static_cast<std::size_t>(home.document)];
  if (text.contains({0, length})) return {home};
  std::vector<Home> parts;
  for (const TextRun& run : text_runs(workload.order, length, home.tokens)) {
    // Of tokens first, first + step, ...: those before a text position.
    const auto before = [&](std::int64_t position) {
      const std::int64_t count = (position - run.first + run.step - 1) / run.step;
      return run.tokens.begin + std::clamp<std::int64_t>(count, 0, run.tokens.size());
    };
    const Range tokens{before(text.begin), before(text.end)};
    if (tokens.empty()) continue;
    if (!parts.empty() && parts.back().tokens.end == tokens.begin) {
      parts.back().tokens.end = tokens.end;
    } else {
      parts.push_back({home.rank, home.document, tokens});
    }
  }
  return parts;
}

OwnedIndex owned_index(const Workload& workload, const IndexParts& parts, std::size_t holder) {
  const std::int64_t length = length_of(workload, parts);
  const auto heads = static_cast<std::size_t>(workload.shape.heads);
  const std::size_t holders = parts.holders.size();
  if (!observes_blocks(workload) || holders < 2 * heads) {
    return {share_of(workload.shape.heads, holder, holders), {0, length}};
  }
  const std::size_t shares = holders / heads;
  if (holder >= heads * shares) return {};
  const auto head = static_cast<std::int64_t>(holder / shares);
  return {{head, head + 1}, area_of(length, workload.sparse.block, holder % shares, shares)};
}

std::vector<IndexNeed> index_needs(const Workload& workload, const IndexParts& parts,
                                   std::size_t holder, IndexRound round) {
  const std::int64_t length = length_of(workload, parts);
  const OwnedIndex owned = owned_index(workload, parts, holder);
  if (observes_blocks(workload)) {
    if (round != IndexRound::observed || owned.empty()) return {};
    return {{Tensor::observed, owned.tokens, owned.heads},
            {Tensor::observed_keys, {0, owned.tokens.end}, key_heads(workload.shape, owned.heads)}};
  }
  if (round == IndexRound::observed) {
    return {{Tensor::observed, SparseRule::observed(length), {0, workload.shape.heads}}};
  }
  if (round == IndexRound::mass && !owned.empty()) {
    return {{Tensor::mass, {0, length}, owned.heads}};
  }
  return {};
}

bool tells_all(const Workload& workload, IndexRound round) {
  return !observes_blocks(workload) && (round == IndexRound::peak || round == IndexRound::sum);
}

cost::IndexWork vertical_slash_work(IndexRound round, double keys, int head_dim) {
  constexpr double kScores = SparseRule::kObserved;  // of a key
  switch (round) {
    case IndexRound::observed:
      return {.flops = keys * kScores * 2 * head_dim};
    case IndexRound::peak:
    case IndexRound::sum:
      return {.scores = keys * kScores};
    case IndexRound::mass:
      return {.masses = keys * 2};  // of a key and of a diagonal
    case IndexRound::pattern:
      break;
  }
  return {};
}

cost::IndexWork index_work(const Workload& workload, const IndexParts& parts, std::size_t holder,
                           IndexRound round) {
  const OwnedIndex owned = owned_index(workload, parts, holder);
  const auto heads = static_cast<double>(owned.heads.size());
  const int head_dim = workload.shape.head_dim;
  if (!observes_blocks(workload)) {
    double keys = 0;  // of all heads at home, or of the owned ones
    for (const Home& home : parts.homes) {
      if (home.rank != parts.holders[holder] && round != IndexRound::mass) continue;
      keys += static_cast<double>(home.tokens.size()) *
              (round == IndexRound::mass ? heads : workload.shape.heads);
    }
    return vertical_slash_work(round, keys, head_dim);
  }
  if (round != IndexRound::observed || owned.empty()) return {};
  const auto area = [&](std::int64_t side) {  // squares of that side
    const auto triangle = [&](std::int64_t tokens) {
      const auto count = static_cast<double>((tokens + side - 1) / side);
      return count * (count + 1) / 2;
    };
    return heads * (triangle(owned.tokens.end) - triangle(owned.tokens.begin));
  };
  const std::int64_t stride = workload.sparse.stride;
  return {.flops = 2.0 * head_dim * static_cast<double>(stride) * area(stride),
          .scores = 2 * area(stride),
          .masses = area(workload.sparse.block)};
}

std::array<bool, kIndexRounds> works_in(const Workload& workload, Rank rank) {
  std::array<bool, kIndexRounds> works{};
  for (const IndexParts& parts : index_parts(workload)) {
    const int holder = parts.holder(rank);
    if (holder < 0) continue;
    for (std::size_t round = 0; round < works.size(); ++round) {
      const cost::IndexWork work = index_work(workload, parts, static_cast<std::size_t>(holder),
                                              static_cast<IndexRound>(round));
      works[round] = works[round] || work.flops + work.scores + work.masses > 0;
    }
  }
  return works;
}

Range observed_diagonals(const Workload& workload, int document, Range tokens) {
  const std::int64_t length = workload.lengths[static_cast<std::size_t>(document)];
  const Range observed = SparseRule::observed(length);
  std::int64_t first = length;
  std::int64_t last = 0;
  for (const TextRun& run : text_runs(workload.order, length, tokens)) {
    first = std::min(first, run.first);
    last = std::max(last, run.last());
  }
  return {std::max<std::int64_t>(0, observed.begin - last), observed.end - first};
}

}  // namespace cadenza::plan
