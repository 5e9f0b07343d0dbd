// SPDX-License-Identifier: Apache-2.0
// The (token, head) plane of one document, cut at all relevant boundaries into cells on which
// everything is constant: owner, servers, messages.
#pragma once

#include <algorithm>
#include <vector>

#include "cadenza/base/range.hpp"

namespace cadenza::plan {

class Grid {
 public:
  /// Adds boundaries. Call finish() after all cuts and before the first use of a cell.
  void cut(Range tokens, Range heads) {
    for (std::int64_t edge : {tokens.begin, tokens.end}) tokens_.push_back(edge);
    for (std::int64_t edge : {heads.begin, heads.end}) heads_.push_back(edge);
  }
  void finish() {
    for (std::vector<std::int64_t>* edges : {&tokens_, &heads_}) {
      std::sort(edges->begin(), edges->end());
      edges->erase(std::unique(edges->begin(), edges->end()), edges->end());
    }
  }

  std::size_t token_cells() const { return tokens_.empty() ? 0 : tokens_.size() - 1; }
  std::size_t head_cells() const { return heads_.empty() ? 0 : heads_.size() - 1; }
  std::size_t cells() const { return token_cells() * head_cells(); }

  /// Tokens and heads of a cell. Index of a cell = head cell * token_cells() + token cell.
  Range tokens(std::size_t cell) const { return between(tokens_, cell % token_cells()); }
  Range heads(std::size_t cell) const { return between(heads_, cell / token_cells()); }

  /// Calls visit(cell) for every cell of a rectangle whose edges were cut.
  template <typename Visit>
  void for_each(Range tokens, Range heads, Visit&& visit) const {
    const std::size_t token_end = index(tokens_, tokens.end);
    const std::size_t head_end = index(heads_, heads.end);
    for (std::size_t head = index(heads_, heads.begin); head < head_end; ++head) {
      for (std::size_t token = index(tokens_, tokens.begin); token < token_end; ++token) {
        visit(head * token_cells() + token);
      }
    }
  }

 private:
  static Range between(const std::vector<std::int64_t>& edges, std::size_t i) {
    return {edges[i], edges[i + 1]};
  }
  static std::size_t index(const std::vector<std::int64_t>& edges, std::int64_t edge) {
    return static_cast<std::size_t>(std::lower_bound(edges.begin(), edges.end(), edge) -
                                    edges.begin());
  }

  std::vector<std::int64_t> tokens_;
  std::vector<std::int64_t> heads_;
};

}  // namespace cadenza::plan
