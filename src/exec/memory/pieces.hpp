// SPDX-License-Identifier: Apache-2.0
// All queries, or all keys, that a rank holds during a tick, at home or in its workspace, by
// document.
#pragma once

#include <algorithm>
#include <ranges>
#include <vector>

#include "cadenza/exec/memory/binding.hpp"

namespace cadenza::exec {

class Pieces {
 public:
  static constexpr int kAnyStage = -1;

  Pieces() = default;
  /// @param keys  true: keys and values; false: queries
  Pieces(const program::TickPlans& plans, Rank rank, const HomeRows& home, bool keys);

  /// Head rows of the workspace; rows needed at different times share memory.
  std::int64_t workspace_rows() const { return workspace_rows_; }

  /// Calls visit(piece) for all pieces that hold some of `tokens` and all of `heads`, ascending by
  /// token.
  /// @param stage  only pieces that are present when its tasks run
  template <typename Visit>
  void for_each(int document, Range tokens, Range heads, int stage, Visit&& visit) const {
    for (const Held& held : overlapping(pieces_, document, tokens)) {
      if (!held.tokens.overlaps(tokens) || !held.heads.contains(heads)) continue;
      const bool there = held.home || (held.arrives <= stage && stage <= held.last);
      if (stage == kAnyStage || there) visit(static_cast<const RowPiece&>(held));
    }
  }

 private:
  struct Held : RowPiece {
    int first = 0;           ///< stage in which its memory must be free
    int last = 0;            ///< last stage that reads it
    std::int64_t reach = 0;  ///< largest end of the document's pieces up to this one
  };
  /// Returns all pieces of the document that may hold some of `tokens`.
  template <typename List>
  static auto overlapping(List& pieces, int document, Range tokens) {
    const auto begin = std::ranges::partition_point(pieces, [&](const Held& held) {
      return held.document < document || (held.document == document && held.reach <= tokens.begin);
    });
    const auto end = std::partition_point(begin, pieces.end(), [&](const Held& held) {
      return held.document == document && held.tokens.begin < tokens.end;
    });
    return std::ranges::subrange(begin, end);
  }
  void add_home(const plan::Workload& workload, const HomeRows& home, bool keys);
  void add_arriving(const program::TickPlans& plans, Rank rank, plan::Tensor what);
  void note_arrival(const program::TickPlans& plans, program::Pass pass, Rank rank, bool keys);
  void sort();
  void note_uses(const program::TickPlans& plans, program::Pass pass, Rank rank, bool keys);
  void place(bool forever, int stages);

  std::vector<Held> pieces_;  ///< ascending by (document, token)
  std::int64_t workspace_rows_ = 0;
};

}  // namespace cadenza::exec
