// SPDX-License-Identifier: Apache-2.0
// Rule `presence`: what every rank holds, stage by stage.
#include <algorithm>
#include <tuple>

#include "rules.hpp"

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

/// Rows that came to a rank and stay there.
struct Arrival {
  Rank rank = 0;
  Tensor what = Tensor::q;
  Rows rows;
  std::size_t ready = 0;  ///< from which stage on tasks may use them; a stage later they may go on
  const Move* move = nullptr;
  std::int64_t reach = 0;  ///< how far it and those before it at its place reach
  auto place() const { return std::tuple(rank, what); }
};

class Presence {
 public:
  Presence(const Workload& workload, const Homes& homes, const DocumentView& view, const Pass& pass,
           Faults& faults)
      : workload_(workload), homes_(homes), view_(view), pass_(pass), faults_(faults) {}

  /// Rows that servers kept from an earlier pass.
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

 private:
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
    std::vector<const Arrival*> open;  // those whose rows reach the present ones
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

  // Rows at home and rows received never overlap, so areas add up.
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
    const Task& task = placed.task;
    const auto require = [&](Tensor what, const Rows& rows) {
      const std::int64_t count = held(placed.server, what, rows, stage + 1);
      if (count < rows.size()) {
        faults_.add("presence", "{}: only {} of {} rows of {} have arrived", describe(placed),
                    count, rows.size(), name(what));
      }
    };
    for (Tensor what : pass_.query_inputs) require(what, {task.q, task.heads});
    for (Tensor what : pass_.key_inputs) {
      require(what, {task.k, key_heads(workload_.shape, task.heads)});
    }
    check_half(placed);
  }

  /// While the first half of a document is computed its second half has no keys yet.
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
  const Pass& pass_;
  Faults& faults_;
  std::vector<Arrival> arrivals_;  // by place, then by token
};

}  // namespace

void check_presence(const Workload& workload, const Homes& homes, const DocumentView& view,
                    const Pass& pass, const DocumentView* kept, Faults& faults) {
  Presence presence(workload, homes, view, pass, faults);
  if (kept != nullptr) presence.keep(*kept);
  presence.check();
}

}  // namespace cadenza::plan
