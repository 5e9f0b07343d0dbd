// SPDX-License-Identifier: Apache-2.0
// Derives the backward plan from the forward plan's moves and tasks alone, so that it works for
// every placement. Inputs take the same ways as in the forward plan, stage by stage. Each server
// sends gradients straight to their owner, in the stage after its last task with their rows, or in
// that in which the forward plan returns its results. They are sums, so no merges are needed.
#include <algorithm>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "plan/assemble.hpp"
#include "plan/grid.hpp"
#include "plan/workload/sharding.hpp"

namespace cadenza::plan {
namespace {

/// Rows of a document that a server's task uses.
struct UsedRows {
  int document = 0;
  Rank server = 0;
  Range tokens;
  Range heads;
  std::size_t stage = 0;
};

class Mirror {
 public:
  explicit Mirror(const Plan& forward)
      : shape_(forward.workload.shape),
        keeps_inputs_(forward.keeps_inputs),
        homes_(forward.workload),
        stages_(forward.stages.size() + 1) {
    note_returns(forward);
    for (std::size_t i = 0; i < forward.stages.size(); ++i) add_stage(forward.stages[i], i);
    add_returns(queries_, {Tensor::dq});
    add_returns(keys_, {Tensor::dk, Tensor::dv});
    while (stages_.size() > 1 && stages_.back().moves.empty() && stages_.back().tasks.empty()) {
      stages_.pop_back();
    }
    for (Stage& stage : stages_) sort_stage(stage);
  }

  std::vector<Stage> take() { return std::move(stages_); }

 private:
  /// The stage in which a server returns results of a document of which it has no row at home.
  void note_returns(const Plan& forward) {
    for (std::size_t i = 0; i < forward.stages.size(); ++i) {
      for (const Move& move : forward.stages[i].moves) {
        if (move.what == Tensor::o) returned_[{move.document, move.from}] = i;
      }
    }
    std::erase_if(returned_, [&](const auto& one) {
      const std::span<const Home> homes = homes_.of(one.first.first);
      return std::ranges::find(homes, one.first.second, &Home::rank) != homes.end();
    });
  }

  void add_stage(const Stage& forward, std::size_t index) {
    Stage& stage = stages_[index];
    for (const Move& move : forward.moves) add_inputs(stage, move);
    for (const PlacedTask& placed : forward.tasks) {
      const Task& task = placed.task;
      stage.tasks.push_back(placed);
      stage.tasks.back().cost *= kBackwardFlopsRatio;
      const std::span<const Home> homes = homes_.of(task.document);
      if (homes.size() == 1 && homes.front().rank == placed.server) continue;
      queries_.push_back({task.document, placed.server, task.q, task.heads, index});
      keys_.push_back({task.document, placed.server, task.k, shape_.key_heads(task.heads), index});
    }
  }

  void add_inputs(Stage& stage, const Move& move) {
    if (!is_result(move.what) && !keeps_inputs_) stage.moves.push_back(move);
    if (move.what != Tensor::q) return;
    for (Tensor what : {Tensor::dout, Tensor::lse, Tensor::delta}) {
      stage.moves.push_back(
          make_move(shape_, move.from, move.to, what, move.document, move.tokens, move.heads));
    }
  }

  void add_returns(std::vector<UsedRows>& parts, const std::vector<Tensor>& gradients) {
    const auto same = [](const UsedRows& a, const UsedRows& b) {
      return a.document == b.document && a.server == b.server;
    };
    std::stable_sort(parts.begin(), parts.end(), [](const UsedRows& a, const UsedRows& b) {
      return std::tie(a.document, a.server) < std::tie(b.document, b.server);
    });
    for (auto begin = parts.begin(); begin != parts.end();) {
      const auto end = std::find_if(begin, parts.end(),
                                    [&](const UsedRows& part) { return !same(part, *begin); });
      return_rows({begin, end}, gradients);
      begin = end;
    }
  }

  /// Returns the gradients of one document's rows from one server; rows that are used last in the
  /// same stage go together.
  void return_rows(std::span<const UsedRows> parts, const std::vector<Tensor>& gradients) {
    Grid grid;
    for (const UsedRows& part : parts) grid.cut(part.tokens, part.heads);
    grid.finish();
    const auto returned = returned_.find({parts.front().document, parts.front().server});
    const std::size_t least = returned == returned_.end() ? 0 : returned->second;
    constexpr std::size_t kUnused = 0;
    std::vector<std::size_t> due(grid.cells(), kUnused);  // stage in which a cell returns
    for (const UsedRows& part : parts) {
      grid.for_each(part.tokens, part.heads, [&](std::size_t c) {
        due[c] = std::max({due[c], part.stage + 1, least});
      });
    }
    for (std::size_t c = 0; c < due.size();) {
      std::size_t end = c + 1;
      while (end < due.size() && due[end] == due[c] && grid.heads(end) == grid.heads(c)) ++end;
      if (due[c] != kUnused) {
        const Range tokens{grid.tokens(c).begin, grid.tokens(end - 1).end};
        send_home({parts.front().document, parts.front().server, tokens, grid.heads(c), due[c]},
                  gradients);
      }
      c = end;
    }
  }

  void send_home(const UsedRows& rows, const std::vector<Tensor>& gradients) {
    homes_.for_each_part(rows.document, rows.tokens, [&](const Home& part) {
      if (part.rank == rows.server) return;
      for (Tensor what : gradients) {
        stages_[rows.stage].moves.push_back(make_move(shape_, rows.server, part.rank, what,
                                                      part.document, part.tokens, rows.heads));
      }
    });
  }

  AttentionShape shape_;
  bool keeps_inputs_;
  Homes homes_;
  std::map<std::pair<int, Rank>, std::size_t> returned_;  // by document and server
  std::vector<Stage> stages_;
  std::vector<UsedRows> queries_;
  std::vector<UsedRows> keys_;
};

}  // namespace

Plan mirror(const Plan& forward) {
  Plan backward;
  backward.workload = forward.workload;
  backward.keeps_inputs = forward.keeps_inputs;
  backward.gathers_all = forward.gathers_all;
  backward.paced = forward.paced;
  if (!forward.index.empty()) {
    backward.index.resize(forward.index.size());
    backward.index.back() = forward.index.back();
  }
  backward.stages = Mirror(forward).take();
  add_totals(backward);
  return backward;
}

}  // namespace cadenza::plan
