// SPDX-License-Identifier: Apache-2.0
// Rule `presence`: ranks hold the rows that they read or send, stage by stage. Rule `need`: ranks
// use the rows that they were sent.
#include <algorithm>
#include <span>
#include <tuple>

#include "plan/grid.hpp"
#include "plan/validate/rules.hpp"

namespace cadenza::plan {
namespace {

struct Rows {
  Range tokens;
  Range heads;
  std::int64_t size() const { return tokens.size() * heads.size(); }
  std::int64_t shared(const Rows& other) const {
    const Range t = intersect(tokens, other.tokens);
    const Range h = intersect(heads, other.heads);
    return t.empty() || h.empty() ? 0 : t.size() * h.size();
  }
};

/// Rows that arrived at a rank, where they stay.
struct Arrival {
  Rank rank = 0;
  Tensor what = Tensor::q;
  Rows rows;
  std::size_t ready = 0;  ///< first stage whose tasks may use them; moves one stage later
  const Move* move = nullptr;
  std::int64_t reach = 0;  ///< largest end of it and earlier ones at its place
  auto place() const { return std::tuple(rank, what); }
};

/// Rows that a rank's task reads or that it sends on.
struct Use {
  Rank rank = 0;
  Tensor what = Tensor::q;
  Rows rows;
  auto place() const { return std::tuple(rank, what); }
};

/// Joins uses of one place and heads that overlap or touch.
void unite(std::vector<Use>& uses) {
  const auto key = [](const Use& u) {
    return std::tuple(u.place(), u.rows.heads.begin, u.rows.heads.end, u.rows.tokens.begin);
  };
  std::ranges::sort(uses, {}, key);
  std::size_t kept = 0;
  for (const Use& next : uses) {
    if (kept > 0) {
      Use& last = uses[kept - 1];
      if (last.place() == next.place() && last.rows.heads == next.rows.heads &&
          next.rows.tokens.begin <= last.rows.tokens.end) {
        last.rows.tokens.end = std::max(last.rows.tokens.end, next.rows.tokens.end);
        continue;
      }
    }
    uses[kept++] = next;
  }
  uses.resize(kept);
}

class Presence {
 public:
  Presence(const Workload& workload, const Homes& homes, const DocumentView& view,
           const PassTensors& pass, Faults& faults)
      : workload_(workload), homes_(homes), view_(view), pass_(pass), faults_(faults) {}

  /// Adds the rows that servers kept from the forward pass.
  void keep(const DocumentView& forward) {
    for (const auto& [stage, move] : forward.moves) {
      if (!is_result(move->what)) arrive(*move, 0);
    }
  }

  void check() {
    for (const auto& [stage, move] : view_.moves) {
      if (pass_.reads(move->what)) arrive(*move, stage);
    }
    std::sort(arrivals_.begin(), arrivals_.end(), [](const Arrival& a, const Arrival& b) {
      return std::tuple(a.place(), a.rows.tokens.begin, a.ready) <
             std::tuple(b.place(), b.rows.tokens.begin, b.ready);
    });
    note_reach();
    check_once();
    for (const auto& [stage, move] : view_.moves) {
      if (pass_.reads(move->what)) check_source(*move, stage);
    }
    for (const auto& [stage, placed] : view_.tasks) check_task(*placed, stage);
  }

  /// Checks that rows that arrived in this pass are read there or sent on.
  /// @param all_keys  whether keys and values may arrive unread
  void check_need(bool all_keys) {
    std::vector<Use> sent;
    std::vector<Use> uses;
    for (const auto& [stage, move] : view_.moves) {
      if (!pass_.reads(move->what) || (all_keys && is_key_side(move->what))) continue;
      sent.push_back({move->to, move->what, {move->tokens, move->heads}});
      uses.push_back({move->from, move->what, {move->tokens, move->heads}});
    }
    for (const auto& [stage, placed] : view_.tasks) {
      for_each_input(placed->task, [&](Tensor what, const Rows& rows) {
        uses.push_back({placed->server, what, rows});
      });
    }
    unite(sent);
    unite(uses);
    for (auto first = sent.begin(); first != sent.end();) {
      const auto last = std::find_if(
          first, sent.end(), [&](const Use& rows) { return rows.place() != first->place(); });
      const auto there = std::ranges::equal_range(uses, first->place(), {}, &Use::place);
      check_need({first, last}, {there.begin(), there.end()});
      first = last;
    }
  }

 private:
  /// Checks one place (rank and tensor).
  void check_need(std::span<const Use> sent, std::span<const Use> uses) {
    Grid grid;
    for (const std::span<const Use> list : {sent, uses}) {
      for (const Use& use : list) grid.cut(use.rows.tokens, use.rows.heads);
    }
    grid.finish();
    std::vector<char> used(grid.cells(), 0);
    for (const Use& use : uses) {
      grid.for_each(use.rows.tokens, use.rows.heads, [&](std::size_t cell) { used[cell] = 1; });
    }
    for (const Use& rows : sent) {
      grid.for_each(rows.rows.tokens, rows.rows.heads, [&](std::size_t cell) {
        if (used[cell] != 0) return;
        faults_.add("need", "{} of document {} tokens {} heads {} on rank {}: nobody reads them",
                    name(rows.what), view_.document, describe(grid.tokens(cell)),
                    describe(grid.heads(cell)), rows.rank);
      });
    }
  }

  /// Calls visit(Tensor, Rows) for all rows that a task reads.
  template <typename Visit>
  void for_each_input(const Task& task, Visit&& visit) const {
    for (const Tensor what : pass_.query_inputs) visit(what, Rows{task.q, task.heads});
    for (const Tensor what : pass_.key_inputs) {
      visit(what, Rows{task.k, workload_.shape.key_heads(task.heads)});
    }
  }

  void arrive(const Move& move, std::size_t stage) {
    arrivals_.push_back({move.to, move.what, {move.tokens, move.heads}, stage, &move});
  }

  void note_reach() {
    const Arrival* last = nullptr;
    for (Arrival& next : arrivals_) {
      const bool same = last != nullptr && last->place() == next.place();
      next.reach = same ? std::max(last->reach, next.rows.tokens.end) : next.rows.tokens.end;
      last = &next;
    }
  }

  void check_once() {
    std::vector<const Arrival*> open;  // arrivals whose rows reach those of `next`
    for (const Arrival& next : arrivals_) {
      std::erase_if(open, [&](const Arrival* a) {
        return a->place() != next.place() || a->rows.tokens.end <= next.rows.tokens.begin;
      });
      const bool twice = std::any_of(open.begin(), open.end(), [&](const Arrival* a) {
        return a->rows.shared(next.rows) > 0;
      });
      if (twice) faults_.add("presence", "{}: sent twice", describe(*next.move));
      if (homes_.held(next.rank, view_.document, next.rows.tokens) > 0) {
        faults_.add("presence", "{}: sent to its own home", describe(*next.move));
      }
      open.push_back(&next);
    }
  }

  // Number of rows x heads that a rank holds. Rows at home and received never overlap: areas add
  // up.
  std::int64_t held(Rank rank, Tensor what, const Rows& rows, std::size_t stages) const {
    std::int64_t count = homes_.held(rank, view_.document, rows.tokens) * rows.heads.size();
    if (count == rows.size()) return count;
    const std::tuple place(rank, what);
    auto arrival = std::partition_point(arrivals_.begin(), arrivals_.end(), [&](const Arrival& a) {
      return std::tuple(a.place(), a.reach) <= std::tuple(place, rows.tokens.begin);
    });
    for (; arrival != arrivals_.end() && arrival->place() == place; ++arrival) {
      if (arrival->rows.tokens.begin >= rows.tokens.end) break;
      if (arrival->ready < stages) count += arrival->rows.shared(rows);
    }
    return count;
  }

  void check_source(const Move& move, std::size_t stage) {
    const Rows rows{move.tokens, move.heads};
    const std::int64_t count = held(move.from, move.what, rows, stage);
    if (count < rows.size()) {
      faults_.add("presence", "{}: the sender has only {} of {} rows before stage {}",
                  describe(move), count, rows.size(), stage);
    }
  }

  void check_task(const PlacedTask& placed, std::size_t stage) {
    for_each_input(placed.task, [&](Tensor what, const Rows& rows) {
      const std::int64_t count = held(placed.server, what, rows, stage + 1);
      if (count < rows.size()) {
        faults_.add("presence", "{}: only {} of {} rows of {} have arrived", describe(placed),
                    count, rows.size(), name(what));
      }
    });
    check_half(placed);
  }

  /// Checks that a task of a document's first half reads no keys of the second, which do not exist
  /// yet.
  void check_half(const PlacedTask& placed) {
    const auto document = static_cast<std::size_t>(view_.document);
    const Range queries = workload_.queries_of(document);
    if (queries.begin > 0 || placed.task.k.end <= queries.end) return;
    if (queries.end < workload_.lengths[document]) {
      faults_.add("presence", "{}: reads keys of the later half, from token {} on",
                  describe(placed), queries.end);
    }
  }

  const Workload& workload_;
  const Homes& homes_;
  const DocumentView& view_;
  const PassTensors& pass_;
  Faults& faults_;
  std::vector<Arrival> arrivals_;  // by place, then by token
};

}  // namespace

void check_presence(const Workload& workload, const Homes& homes, const DocumentView& view,
                    const PassTensors& pass, const DocumentView* kept, bool gathers_all,
                    Faults& faults) {
  Presence presence(workload, homes, view, pass, faults);
  if (kept != nullptr) presence.keep(*kept);
  presence.check();
  presence.check_need(gathers_all);
}

}  // namespace cadenza::plan
