// SPDX-License-Identifier: Apache-2.0
#include "sparse_rows.hpp"

namespace cadenza::kernels {
namespace {

/// Adds the pairs of a strip and a range of keys that lies before it or holds its own block.
template <typename Real>
void add_part(const TaskList<Real>& list, const TaskRows& entry, std::int64_t head, Range queries,
              Range keys, std::vector<TaskRows>& tasks) {
  TaskRows part = entry;
  part.task.q = queries;
  part.task.k = keys;
  part.task.heads = {head, head + 1};
  const std::int64_t pairs = allowed_pairs(part.task);
  if (pairs == 0) return;
  if (list.pairs != nullptr) list.pairs[list.index->place(entry.task.document, head)] += pairs;
  tasks.push_back(part);
}

}  // namespace

template <typename Real>
TaskList<Real> expanded(const TaskList<Real>& list) {
  TaskList<Real> dense = list;
  dense.tasks.clear();
  dense.index = nullptr;
  for (const TaskRows& entry : list.tasks) {
    const Task& task = entry.task;
    if (task.q.empty() || task.k.empty()) continue;
    const QueryRows<Real>& queries = list.queries[static_cast<std::size_t>(entry.query_rows)];
    const KeyRows<Real>& keys = list.keys[static_cast<std::size_t>(entry.key_rows)];
    for (std::int64_t head = task.heads.begin; head < task.heads.end; ++head) {
      const SparsePattern& pattern = *list.index->of(task.document, head);
      const Range text = position_range(keys, task.k);
      for_each_strip(queries, task.q, pattern.block(), [&](Strip strip) {
        const auto add = [&](Range part) {
          add_part(list, entry, head, strip.tokens, tokens_in(keys, task.k, part), dense.tasks);
        };
        pattern.for_each_active(strip.row, text, add);
        pattern.for_each_column(strip.row, text, [&](std::int64_t key) { add({key, key + 1}); });
      });
    }
  }
  return dense;
}

template TaskList<float> expanded<float>(const TaskList<float>&);
template TaskList<double> expanded<double>(const TaskList<double>&);

}  // namespace cadenza::kernels
