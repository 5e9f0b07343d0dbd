// SPDX-License-Identifier: Apache-2.0
// Where tokens live: the homes of a workload, by document.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

class Homes {
 public:
  explicit Homes(const Workload& workload);

  /// Homes of a document, ascending by token.
  std::span<const Home> of(int document) const;

  /// How many of `tokens` live on `rank`.
  std::int64_t held(Rank rank, int document, Range tokens) const;

  bool holds(Rank rank, int document, Range tokens) const {
    return held(rank, document, tokens) == tokens.size();
  }

  /// Calls visit(Home) for every part of `tokens`, ascending, cut where the home changes.
  template <typename Visit>
  void for_each_part(int document, Range tokens, Visit&& visit) const {
    if (tokens.empty()) return;
    const std::span<const Home> homes = of(document);
    // Documents over many ranks have many homes: begin at the first that reaches `tokens`.
    auto home = std::partition_point(homes.begin(), homes.end(),
                                     [&](const Home& h) { return h.tokens.end <= tokens.begin; });
    for (; home != homes.end() && home->tokens.begin < tokens.end; ++home) {
      visit(Home{home->rank, document, intersect(home->tokens, tokens)});
    }
  }

 private:
  std::vector<Home> homes_;           // ascending by (document, token)
  std::vector<std::size_t> offsets_;  // of each document in homes_, and the end
};

/// Sorts rows by (document, rank, token) and joins those of one rank that overlap or touch.
void unite(std::vector<Home>& rows);

}  // namespace cadenza::plan
