// SPDX-License-Identifier: Apache-2.0
#include "plan/assemble.hpp"

#include <algorithm>
#include <span>
#include <tuple>

#include "plan/grid.hpp"

namespace cadenza::plan {
namespace {

class Assembler {
 public:
  Assembler(const Workload& workload, const Homes& homes) : workload_(workload), homes_(homes) {}

  std::array<Stage, 3> stages(const std::vector<Assignment>& assignments, bool gathers_all) {
    for (const Assignment& assignment : assignments) add(assignment);
    if (gathers_all) gather_keys();
    unite(queries_);
    unite(keys_);
    for (const Home& need : queries_) {
      for_each_sent(need, [&](const Home& part) {
        add_move(remote_, part.rank, need.rank, Tensor::q, part);
        add_move(results_, need.rank, part.rank, Tensor::o, part);
        add_move(results_, need.rank, part.rank, Tensor::lse, part);
      });
    }
    for (const Home& need : keys_) {
      for_each_sent(need, [&](const Home& part) {
        add_move(remote_, part.rank, need.rank, Tensor::k, part);
        add_move(remote_, part.rank, need.rank, Tensor::v, part);
      });
    }
    return {std::move(local_), std::move(remote_), std::move(results_)};
  }

 private:
  void add(const Assignment& assignment) {
    const int document = assignment.document;
    const Range q =
        intersect(assignment.q, workload_.queries_of(static_cast<std::size_t>(document)));
    const Mask mask = workload_.mask_of(document);
    const Range k = assignment.k.empty() ? mask.keys(q) : assignment.k;
    mask.for_each_task({document, q, k, {0, workload_.shape.heads}},
                       [&](const Task& task) { add(task, assignment.server); });
  }

  void add(const Task& task, Rank server) {
    const PlacedTask placed = place_task(workload_, server, task);
    if (homes_.holds(server, task.document, task.k) &&
        homes_.holds(server, task.document, task.q)) {
      local_.tasks.push_back(placed);
      return;
    }
    remote_.tasks.push_back(placed);
    queries_.push_back({server, task.document, task.q});
    keys_.push_back({server, task.document, task.k});
  }

  /// Gives every rank of a group all keys from the first to the last that a query of the group
  /// sees.
  void gather_keys() {
    for (const Home& home : workload_.homes) {
      const Range queries = workload_.queries_of(static_cast<std::size_t>(home.document));
      const Range seen = intersect(home.tokens, workload_.mask_of(home.document).keys(queries));
      if (seen.empty()) continue;
      const Rank first = home.rank / workload_.context * workload_.context;
      for (Rank to = first; to < first + workload_.context; ++to) {
        keys_.push_back({to, home.document, seen});
      }
    }
  }

  template <typename Visit>
  void for_each_sent(const Home& need, Visit&& visit) const {
    homes_.for_each_part(need.document, need.tokens, [&](const Home& part) {
      if (part.rank != need.rank) visit(part);
    });
  }

  void add_move(Stage& stage, Rank from, Rank to, Tensor what, const Home& part) const {
    stage.moves.push_back(
        make_move(workload_.shape, from, to, what, part.document, part.tokens,
                  {0, is_key_side(what) ? workload_.shape.kv_heads : workload_.shape.heads}));
  }

  const Workload& workload_;
  const Homes& homes_;
  Stage local_;
  Stage remote_;
  Stage results_;
  // Rows that servers need for their remote tasks. Overlapping needs are united: a row moves once.
  std::vector<Home> queries_;
  std::vector<Home> keys_;
};

bool sees_all(const Workload& workload, const Assignment& a) {
  return a.k.empty() || a.k.contains(workload.mask_of(a.document).keys(a.q));
}

/// Calls join(a, next) for neighbours and removes `next` where it returns true: `a` has grown by
/// it.
template <typename Join>
void join_neighbours(std::vector<Assignment>& list, Join&& join) {
  std::size_t kept = 0;
  for (const Assignment& next : list) {
    if (kept > 0 && join(list[kept - 1], next)) continue;
    list[kept++] = next;
  }
  list.resize(kept);
}

bool same_place(const Assignment& a, const Assignment& b) {
  return a.document == b.document && a.server == b.server;
}

bool join_queries(const Workload& workload, Assignment& a, const Assignment& b) {
  if (!same_place(a, b) || a.q.end != b.q.begin) return false;
  Assignment both = a;
  both.q.end = b.q.end;
  if (!a.k.empty()) {
    // The keys may differ if no query gains a pair that its own keys did not have.
    both.k = {std::min(a.k.begin, b.k.begin), std::max(a.k.end, b.k.end)};
    const Mask mask = workload.mask_of(a.document);
    if (mask.pairs(both.q, both.k) != mask.pairs(a.q, a.k) + mask.pairs(b.q, b.k)) return false;
  }
  a = both;
  return true;
}

bool join_keys(Assignment& a, const Assignment& b) {
  if (!same_place(a, b) || a.q != b.q || a.k.empty() || a.k.end != b.k.begin) return false;
  a.k.end = b.k.end;
  return true;
}

/// Joins parts of one query range along their keys, then sorts by key for joining along queries.
void join_key_parts(const Workload& workload, std::vector<Assignment>& list) {
  for (Assignment& a : list) a.k = keys_of(workload, a);
  const auto by_query = [](const Assignment& a) {
    return std::tuple(a.document, a.server, a.q.begin, a.k.begin);
  };
  const auto by_key = [](const Assignment& a) {
    return std::tuple(a.document, a.server, a.k.begin, a.q.begin);
  };
  std::sort(list.begin(), list.end(),
            [&](const auto& a, const auto& b) { return by_query(a) < by_query(b); });
  join_neighbours(list, join_keys);
  std::sort(list.begin(), list.end(),
            [&](const auto& a, const auto& b) { return by_key(a) < by_key(b); });
  join_neighbours(list,
                  [&](Assignment& a, const Assignment& b) { return join_queries(workload, a, b); });
  for (Assignment& a : list) {
    if (sees_all(workload, a)) a.k = {};
  }
}

}  // namespace

Range keys_of(const Workload& workload, const Assignment& assignment) {
  const Mask mask = workload.mask_of(assignment.document);
  return assignment.k.empty() ? mask.keys(assignment.q) : mask.keys(assignment.q, assignment.k);
}

void coalesce(const Workload& workload, std::vector<Assignment>& assignments) {
  std::erase_if(assignments, [&](const Assignment& a) {
    return a.q.empty() || (!a.k.empty() && workload.mask_of(a.document).pairs(a.q, a.k) == 0);
  });
  const bool cut_keys = std::any_of(assignments.begin(), assignments.end(),
                                    [](const Assignment& a) { return !a.k.empty(); });
  if (cut_keys) join_key_parts(workload, assignments);
  std::sort(assignments.begin(), assignments.end(), [](const Assignment& a, const Assignment& b) {
    return std::tie(a.document, a.q.begin, a.k.begin) < std::tie(b.document, b.q.begin, b.k.begin);
  });
  if (cut_keys) return;
  join_neighbours(assignments,
                  [&](Assignment& a, const Assignment& b) { return join_queries(workload, a, b); });
}

std::array<Stage, 3> straight_stages(const Workload& workload, const Homes& homes,
                                     const std::vector<Assignment>& assignments, bool gathers_all) {
  return Assembler(workload, homes).stages(assignments, gathers_all);
}

Plan assemble(const Workload& workload, const Homes& homes, std::vector<Assignment> assignments,
              bool gathers_all) {
  coalesce(workload, assignments);
  Plan plan;
  plan.workload = workload;
  plan.gathers_all = gathers_all;
  for (Stage& stage : straight_stages(workload, homes, assignments, gathers_all)) {
    if (!plan.stages.empty() && is_empty(stage)) continue;
    sort_stage(stage);
    plan.stages.push_back(std::move(stage));
  }
  plan.merges = make_merges(workload, homes, plan.stages);
  add_totals(plan);
  return plan;
}

namespace {

struct Cell {
  Rank owner = -1;
  std::vector<Rank> contributors;
};

/// Appends a merge, or grows the last one by it where they touch along tokens and have the same
/// owner, heads and contributors.
void append_joined(std::vector<Merge>& merges, std::size_t first, Merge next) {
  if (merges.size() > first) {
    Merge& last = merges.back();
    if (last.owner == next.owner && last.heads == next.heads &&
        last.tokens.end == next.tokens.begin && last.contributors == next.contributors) {
      last.tokens.end = next.tokens.end;
      return;
    }
  }
  merges.push_back(std::move(next));
}

void join_heads(std::vector<Merge>& merges, std::size_t first) {
  std::size_t kept = first;
  for (std::size_t i = first; i < merges.size(); ++i) {
    const auto replica = std::find_if(
        merges.begin() + static_cast<std::ptrdiff_t>(first),
        merges.begin() + static_cast<std::ptrdiff_t>(kept), [&](const Merge& m) {
          return m.owner == merges[i].owner && m.tokens == merges[i].tokens &&
                 m.heads.end == merges[i].heads.begin && m.contributors == merges[i].contributors;
        });
    if (replica != merges.begin() + static_cast<std::ptrdiff_t>(kept)) {
      replica->heads.end = merges[i].heads.end;
    } else {
      if (kept != i) merges[kept] = std::move(merges[i]);
      ++kept;
    }
  }
  merges.resize(kept);
}

/// The tasks of one document.
using Tasks = std::span<const PlacedTask* const>;

void merge_document(int document, Range queries, const Homes& homes, Range all_heads, Tasks tasks,
                    std::vector<Merge>& merges) {
  Grid grid;
  grid.cut(queries, all_heads);
  homes.for_each_part(document, queries,
                      [&](const Home& part) { grid.cut(part.tokens, all_heads); });
  for (const PlacedTask* placed : tasks) grid.cut(placed->task.q, placed->task.heads);
  grid.finish();
  std::vector<Cell> cells(grid.cells());
  homes.for_each_part(document, queries, [&](const Home& part) {
    grid.for_each(part.tokens, all_heads, [&](std::size_t c) { cells[c].owner = part.rank; });
  });
  for (const PlacedTask* placed : tasks) {
    grid.for_each(placed->task.q, placed->task.heads,
                  [&](std::size_t c) { cells[c].contributors.push_back(placed->server); });
  }
  const std::size_t first = merges.size();
  for (std::size_t c = 0; c < cells.size(); ++c) {
    std::vector<Rank>& ranks = cells[c].contributors;
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    append_joined(merges, first,
                  {cells[c].owner, document, grid.tokens(c), grid.heads(c), std::move(ranks)});
  }
  if (grid.head_cells() > 1) join_heads(merges, first);
}

}  // namespace

std::vector<Merge> make_merges(const Workload& workload, const Homes& homes,
                               const std::vector<Stage>& stages) {
  std::vector<const PlacedTask*> tasks;
  for (const Stage& stage : stages) {
    for (const PlacedTask& placed : stage.tasks) tasks.push_back(&placed);
  }
  std::stable_sort(tasks.begin(), tasks.end(), [](const PlacedTask* a, const PlacedTask* b) {
    return a->task.document < b->task.document;
  });
  const Range all_heads{0, workload.shape.heads};
  std::vector<Merge> merges;
  auto begin = tasks.begin();
  for (std::size_t i = 0; i < workload.lengths.size(); ++i) {
    const int document = static_cast<int>(i);
    const auto end = std::find_if(begin, tasks.end(), [&](const PlacedTask* placed) {
      return placed->task.document != document;
    });
    const Range queries = workload.queries_of(i);
    if (end - begin == 1 && homes.of(document).size() == 1 && (*begin)->task.heads == all_heads) {
      merges.push_back(
          {homes.of(document).front().rank, document, queries, all_heads, {(*begin)->server}});
    } else if (!queries.empty()) {
      merge_document(document, queries, homes, all_heads, {begin, end}, merges);
    }
    begin = end;
  }
  return merges;
}

}  // namespace cadenza::plan
