// SPDX-License-Identifier: Apache-2.0
#include "plan/merges.hpp"

#include <algorithm>
#include <span>

#include "plan/grid.hpp"

namespace cadenza::plan {
namespace {

struct Cell {
  Rank owner = -1;
  std::vector<Rank> contributors;
};

/// Joins rectangles that touch along tokens, then along heads, where owner and contributors agree.
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
