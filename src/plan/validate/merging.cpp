// SPDX-License-Identifier: Apache-2.0
// Rule `merging`: partial results reach their owner exactly once, after all their parts were
// computed, and the merges name the servers that they come from.
#include <algorithm>
#include <array>
#include <span>
#include <tuple>

#include "plan/grid.hpp"
#include "plan/validate/rules.hpp"

namespace cadenza::plan {
namespace {

/// Events in the life of a document's rows on one server.
enum class Event { computed, received, returned };

struct Entry {
  Rank server = 0;
  Event event = Event::computed;
  std::size_t stage = 0;
  Range tokens;
  Range heads;
  const Move* move = nullptr;  ///< for `returned`
};

/// A server's events on one cell.
struct ServerState {
  bool touched = false;
  bool computed = false;
  std::size_t last_stage = 0;
  std::array<int, 2> returned = {};  ///< returns to the owner, by result
};

struct Cell {
  Rank owner = -1;
  int merges = 0;
  std::vector<Rank> computed;  ///< servers, ascending
  ServerState part;            ///< state of the server that is being checked
};

/// Queries or keys of one document.
class Side {
 public:
  Side(const Homes& homes, const DocumentView& view, bool keys, const AttentionShape& shape,
       const std::vector<Tensor>& results)
      : view_(view),
        keys_(keys),
        shape_(shape),
        results_(results),
        all_heads_{0, keys ? shape.kv_heads : shape.heads} {
    list_entries();
    cut(homes);
    for (const Home& home : homes.of(view.document)) {
      grid_.for_each(home.tokens, all_heads_, [&](std::size_t c) { cells_[c].owner = home.rank; });
    }
  }

  void check_returns(Faults& faults) {
    for (auto begin = entries_.begin(); begin != entries_.end();) {
      const auto end = std::find_if(
          begin, entries_.end(), [&](const Entry& entry) { return entry.server != begin->server; });
      check_server(begin->server, {begin, end}, faults);
      begin = end;
    }
  }

  /// Checks the merges; call check_returns first.
  void check_merges(Range queries, Faults& faults) {
    for (const Merge* merge : view_.merges) {
      grid_.for_each(merge->tokens, merge->heads, [&](std::size_t c) {
        ++cells_[c].merges;
        check_merge(*merge, c, faults);
      });
    }
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      const int expected = queries.overlaps(grid_.tokens(c)) ? 1 : 0;
      if (cells_[c].merges != expected) {
        faults.add("merging", "{}: in {} merges, valid: {}", where(c), cells_[c].merges, expected);
      }
    }
  }

 private:
  Range tokens(const Task& task) const { return keys_ ? task.k : task.q; }
  Range heads(const Task& task) const { return keys_ ? shape_.key_heads(task.heads) : task.heads; }
  std::size_t result(Tensor what) const {
    return static_cast<std::size_t>(std::find(results_.begin(), results_.end(), what) -
                                    results_.begin());
  }

  void list_entries() {
    for (const auto& [stage, placed] : view_.tasks) {
      const Task& task = placed->task;
      entries_.push_back({placed->server, Event::computed, stage, tokens(task), heads(task)});
    }
    for (const auto& [stage, move] : view_.moves) {
      if (is_key_side(move->what) != keys_) continue;
      if (result(move->what) < results_.size()) {
        entries_.push_back({move->from, Event::returned, stage, move->tokens, move->heads, move});
      } else if (keys_) {  // received keys: their gradient (perhaps zero) may return
        entries_.push_back({move->to, Event::received, stage, move->tokens, move->heads});
      }
    }
    std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
      return std::tie(a.server, a.event) < std::tie(b.server, b.event);
    });
  }

  void cut(const Homes& homes) {
    for (const Home& home : homes.of(view_.document)) grid_.cut(home.tokens, all_heads_);
    for (const Entry& entry : entries_) grid_.cut(entry.tokens, entry.heads);
    if (!keys_) {
      for (const Merge* merge : view_.merges) grid_.cut(merge->tokens, merge->heads);
    }
    grid_.finish();
    cells_.resize(grid_.cells());
  }

  void check_server(Rank server, std::span<const Entry> entries, Faults& faults) {
    std::vector<std::size_t> touched;
    for (const Entry& entry : entries) {
      if (entry.event == Event::returned) {
        check_return(entry, faults);
        continue;
      }
      grid_.for_each(entry.tokens, entry.heads, [&](std::size_t c) {
        ServerState& part = cells_[c].part;
        if (!part.touched) touched.push_back(c);
        part.touched = true;
        part.computed = part.computed || entry.event == Event::computed;
        part.last_stage = std::max(part.last_stage, entry.stage);
      });
    }
    for (std::size_t c : touched) {
      check_all_returned(server, c, faults);
      if (cells_[c].part.computed) cells_[c].computed.push_back(server);
      cells_[c].part = {};
    }
  }

  void check_return(const Entry& entry, Faults& faults) {
    std::string fault;  // one line per move is enough
    bool merging = false;
    grid_.for_each(entry.tokens, entry.heads, [&](std::size_t c) {
      Cell& cell = cells_[c];
      if (!cell.part.touched) {
        fault = "the sender computes no part of it";
      } else if (cell.part.last_stage >= entry.stage) {
        fault = "sent before its last task has run";
      } else if (entry.move->to != cell.owner) {
        fault = fmt::format("the owner is rank {}", cell.owner);
        merging = true;
      } else {
        ++cell.part.returned[result(entry.move->what)];
      }
    });
    if (!fault.empty()) {
      faults.add(merging ? "merging" : "presence", "{}: {}", describe(*entry.move), fault);
    }
  }

  void check_all_returned(Rank server, std::size_t c, Faults& faults) const {
    const Cell& cell = cells_[c];
    if (server == cell.owner) return;
    for (std::size_t i = 0; i < results_.size(); ++i) {
      const int count = cell.part.returned[i];
      if (count > 1 || (count == 0 && cell.part.computed)) {
        faults.add("merging", "{} of {} reaches its owner, rank {}, {} times from rank {}",
                   name(results_[i]), where(c), cell.owner, count, server);
      }
    }
  }

  void check_merge(const Merge& merge, std::size_t c, Faults& faults) const {
    if (merge.owner != cells_[c].owner) {
      faults.add("merging", "{}: merged by rank {}, the owner is rank {}", where(c), merge.owner,
                 cells_[c].owner);
    }
    if (merge.contributors != cells_[c].computed) {
      faults.add("merging", "{}: merged from ranks [{}], computed on ranks [{}]", where(c),
                 fmt::join(merge.contributors, ","), fmt::join(cells_[c].computed, ","));
    }
  }

  std::string where(std::size_t c) const {
    return fmt::format("document {} tokens {} heads {}", view_.document, describe(grid_.tokens(c)),
                       describe(grid_.heads(c)));
  }

  const DocumentView& view_;
  bool keys_;
  AttentionShape shape_;
  const std::vector<Tensor>& results_;
  Range all_heads_;
  Grid grid_;
  std::vector<Cell> cells_;
  std::vector<Entry> entries_;  // by server, returns last
};

}  // namespace

void check_merging(const Workload& workload, const Homes& homes, const DocumentView& view,
                   const PassTensors& pass, bool merged, Faults& faults) {
  Side queries(homes, view, false, workload.shape, pass.query_results);
  queries.check_returns(faults);
  if (merged) {
    queries.check_merges(workload.queries_of(static_cast<std::size_t>(view.document)), faults);
  }
  if (!pass.key_results.empty()) {
    Side keys(homes, view, true, workload.shape, pass.key_results);
    keys.check_returns(faults);
  }
}

}  // namespace cadenza::plan
