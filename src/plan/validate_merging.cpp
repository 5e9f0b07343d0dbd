// SPDX-License-Identifier: Apache-2.0
// Rule `merging`: partial results reach their owner exactly once, after all their parts were
// computed, and the merges say from whom they come.
#include <algorithm>
#include <map>

#include "grid.hpp"
#include "validate_rules.hpp"

namespace cadenza::plan {
namespace {

/// What a server did about one cell.
struct Contribution {
  bool computed = false;
  bool received = false;  ///< its keys travelled there, so that a (zero) gradient may return
  std::size_t last_stage = 0;
  std::map<Tensor, int> returned;  ///< to the owner
};

struct Cell {
  Rank owner = -1;
  int merges = 0;
  std::map<Rank, Contribution> servers;
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
    cut(homes);
    for (const Home& home : homes.of(view.document)) {
      grid_.for_each(home.tokens, all_heads_, [&](std::size_t c) { cells_[c].owner = home.rank; });
    }
    for (const auto& [stage, placed] : view.tasks) {
      grid_.for_each(tokens(placed->task), heads(placed->task),
                     [&, s = stage, p = placed](std::size_t c) {
                       Contribution& part = cells_[c].servers[p->server];
                       part.computed = true;
                       part.last_stage = std::max(part.last_stage, s);
                     });
    }
  }

  void check_returns(Faults& faults) {
    if (keys_) note_received();
    for (const auto& [stage, move] : view_.moves) {
      if (is_result_here(move->what)) check_return(*move, stage, faults);
    }
    for (std::size_t c = 0; c < cells_.size(); ++c) check_all_returned(c, faults);
  }

  void check_merges(Faults& faults) {
    for (const Merge* merge : view_.merges) {
      grid_.for_each(merge->tokens, merge->heads, [&](std::size_t c) {
        ++cells_[c].merges;
        check_merge(*merge, c, faults);
      });
    }
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      if (cells_[c].merges != 1) {
        faults.add("merging", "{}: in {} merges, valid: 1", where(c), cells_[c].merges);
      }
    }
  }

 private:
  Range tokens(const Task& task) const { return keys_ ? task.k : task.q; }
  Range heads(const Task& task) const { return keys_ ? key_heads(shape_, task.heads) : task.heads; }
  bool is_result_here(Tensor what) const {
    return std::find(results_.begin(), results_.end(), what) != results_.end();
  }
  bool concerns(const Move& move) const { return is_key_side(move.what) == keys_; }

  void cut(const Homes& homes) {
    for (const Home& home : homes.of(view_.document)) grid_.cut(home.tokens, all_heads_);
    for (const auto& [stage, placed] : view_.tasks) {
      grid_.cut(tokens(placed->task), heads(placed->task));
    }
    for (const auto& [stage, move] : view_.moves) {
      if (concerns(*move)) grid_.cut(move->tokens, move->heads);
    }
    if (!keys_) {
      for (const Merge* merge : view_.merges) grid_.cut(merge->tokens, merge->heads);
    }
    grid_.finish();
    cells_.resize(grid_.cells());
  }

  void note_received() {
    for (const auto& [stage, move] : view_.moves) {
      if (is_result_here(move->what) || !concerns(*move)) continue;
      grid_.for_each(move->tokens, move->heads, [&, s = stage, m = move](std::size_t c) {
        Contribution& part = cells_[c].servers[m->to];
        part.received = true;
        part.last_stage = std::max(part.last_stage, s);
      });
    }
  }

  void check_return(const Move& move, std::size_t stage, Faults& faults) {
    std::string fault;  // one line per move is enough
    bool merging = false;
    grid_.for_each(move.tokens, move.heads, [&](std::size_t c) {
      Cell& cell = cells_[c];
      const auto part = cell.servers.find(move.from);
      if (part == cell.servers.end() || !(part->second.computed || part->second.received)) {
        fault = "the sender computes no part of it";
      } else if (part->second.last_stage >= stage) {
        fault = "sent before its last task has run";
      } else if (move.to != cell.owner) {
        fault = fmt::format("the owner is rank {}", cell.owner);
        merging = true;
      } else {
        ++part->second.returned[move.what];
      }
    });
    if (!fault.empty())
      faults.add(merging ? "merging" : "presence", "{}: {}", describe(move), fault);
  }

  void check_all_returned(std::size_t c, Faults& faults) {
    for (auto& [server, part] : cells_[c].servers) {
      if (server == cells_[c].owner) continue;
      for (Tensor what : results_) {
        const int count = part.returned[what];
        if (count > 1 || (count == 0 && part.computed)) {
          faults.add("merging", "{} of {} reaches its owner, rank {}, {} times from rank {}",
                     name(what), where(c), cells_[c].owner, count, server);
        }
      }
    }
  }

  void check_merge(const Merge& merge, std::size_t c, Faults& faults) const {
    if (merge.owner != cells_[c].owner) {
      faults.add("merging", "{}: merged by rank {}, the owner is rank {}", where(c), merge.owner,
                 cells_[c].owner);
    }
    std::vector<Rank> expected;
    for (const auto& [server, part] : cells_[c].servers) {
      if (part.computed) expected.push_back(server);
    }
    if (merge.contributors != expected) {
      faults.add("merging", "{}: merged from ranks [{}], computed on ranks [{}]", where(c),
                 fmt::join(merge.contributors, ","), fmt::join(expected, ","));
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
};

}  // namespace

void check_merging(const Workload& workload, const Homes& homes, const DocumentView& view,
                   const Pass& pass, bool merged, Faults& faults) {
  Side queries(homes, view, false, workload.shape, pass.query_results);
  queries.check_returns(faults);
  if (merged) queries.check_merges(faults);
  if (!pass.key_results.empty()) {
    Side keys(homes, view, true, workload.shape, pass.key_results);
    keys.check_returns(faults);
  }
}

}  // namespace cadenza::plan
