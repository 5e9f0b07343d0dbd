// SPDX-License-Identifier: Apache-2.0
#include "merges.hpp"

#include <algorithm>

#include "grid.hpp"

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
    const auto twin = std::find_if(
        merges.begin() + static_cast<std::ptrdiff_t>(first),
        merges.begin() + static_cast<std::ptrdiff_t>(kept), [&](const Merge& m) {
          return m.owner == merges[i].owner && m.tokens == merges[i].tokens &&
                 m.heads.end == merges[i].heads.begin && m.contributors == merges[i].contributors;
        });
    if (twin != merges.begin() + static_cast<std::ptrdiff_t>(kept)) {
      twin->heads.end = merges[i].heads.end;
    } else {
      if (kept != i) merges[kept] = std::move(merges[i]);
      ++kept;
    }
  }
  merges.resize(kept);
}

void merge_document(int document, std::int64_t length, const Homes& homes, Range all_heads,
                    const std::vector<const PlacedTask*>& tasks, std::vector<Merge>& merges) {
  Grid grid;
  for (const Home& home : homes.of(document)) grid.cut(home.tokens, all_heads);
  for (const PlacedTask* placed : tasks) grid.cut(placed->task.q, placed->task.heads);
  grid.finish();
  std::vector<Cell> cells(grid.cells());
  homes.for_each_part(document, {0, length}, [&](const Home& part) {
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
  std::vector<std::vector<const PlacedTask*>> tasks(workload.lengths.size());
  for (const Stage& stage : stages) {
    for (const PlacedTask& placed : stage.tasks) {
      tasks[static_cast<std::size_t>(placed.task.document)].push_back(&placed);
    }
  }
  std::vector<Merge> merges;
  for (std::size_t document = 0; document < tasks.size(); ++document) {
    merge_document(static_cast<int>(document), workload.lengths[document], homes,
                   {0, workload.shape.heads}, tasks[document], merges);
  }
  return merges;
}

}  // namespace cadenza::plan
