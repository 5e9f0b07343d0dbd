// SPDX-License-Identifier: Apache-2.0
// Who computes which cell of a document's attention matrix, by text positions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

/// The attention matrix of one document and one slice of its heads, in square cells; cell (row,
/// column) stands for the query in its middle and the key in its middle.
class Picture {
 public:
  static constexpr Rank kMasked = -1;  ///< the key is behind the query
  static constexpr Rank kNobody = -2;  ///< not computed by this plan: another half's queries

  /// @param cells  rows at most; of a striped document, whose stripes are finer than that, the
  /// first tokens are shown, a run a cell
  Picture(const Plan& plan, int document, Range heads, std::int64_t cells);

  std::int64_t size() const { return size_; }
  std::int64_t tokens() const { return tokens_; }  ///< of the text that are shown
  Rank server(std::int64_t row, std::int64_t column) const {
    return servers_[static_cast<std::size_t>(row * size_ + column)];
  }

 private:
  std::int64_t size_;
  std::int64_t tokens_;
  std::vector<Rank> servers_;
};

/// Head ranges that the tasks of a document divide its heads into; one where they do not.
std::vector<Range> head_slices(const Plan& plan, int document);

/// The documents of a plan, the longest first, at most `count`.
std::vector<int> longest_documents(const Plan& plan, std::size_t count);

/// Pictures in characters, side by side: a digit or letter for each rank, "." for masked cells, "-"
/// for queries of another half; empty with more than 36 ranks.
std::string draw(const Plan& plan, int first_document);

}  // namespace cadenza::plan
