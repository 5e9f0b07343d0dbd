// SPDX-License-Identifier: Apache-2.0
#include "sparse_call.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "../tasks/sparse_rows.hpp"

namespace cadenza::kernels::device {
namespace {

template <typename T>
int size(const std::vector<T>& items) {
  return static_cast<int>(items.size());
}

/// Writes patterns, each array once for all patterns that have it in common.
class Patterns {
 public:
  Patterns(const TaskList<bfloat16>& list, SparseCall& made) : list_(list), made_(made) {}

  /// Adds the patterns of a task's heads; returns the place of head 0's if it had one.
  int add(int task) {
    const Task& of = list_.tasks[static_cast<std::size_t>(task)].task;
    const int first = size(made_.patterns) - static_cast<int>(of.heads.begin);
    for (std::int64_t head = of.heads.begin; head < of.heads.end; ++head) add(task, head);
    return first;
  }

 private:
  void add(int task, std::int64_t head) {
    const TaskRows& rows = list_.tasks[static_cast<std::size_t>(task)];
    const SparsePattern& pattern = *list_.index->of(rows.task.document, head);
    GatheredKeys& keys = columns_of(rows, head, pattern);
    keys.tasks.push_back(task);
    Pattern made = runs_of(rows.task.document, head, pattern);
    made.first_column = keys.first_column;
    made.columns = keys.columns;
    made.column_bits = keys.column_bits;
    made.lines = static_cast<int>(pattern.rows());
    made.q_edges = edges_of(Side::queries, rows.query_rows, pattern,
                            list_.queries[static_cast<std::size_t>(rows.query_rows)]);
    made.k_edges = edges_of(Side::keys, rows.key_rows, pattern,
                            list_.keys[static_cast<std::size_t>(rows.key_rows)]);
    made_.patterns.push_back(made);
  }

  GatheredKeys& columns_of(const TaskRows& rows, std::int64_t head, const SparsePattern& pattern) {
    const auto [at, added] = columns_.try_emplace(
        std::tuple{rows.key_rows, rows.task.document, head}, made_.gathered.size());
    if (!added) return made_.gathered[at->second];
    const auto& buffer = list_.keys[static_cast<std::size_t>(rows.key_rows)];
    GatheredKeys& keys = made_.gathered.emplace_back();
    keys.keys = rows.key_rows;
    keys.head = static_cast<int>(head);
    keys.first_column = size(made_.columns);
    keys.column_bits = size(made_.column_bits);
    // Words of whole units of keys, and one that is read with the last key's.
    const std::int64_t words = (buffer.tokens.size() + kMostRows - 1) / kMostRows * kMostRows / 64;
    made_.column_bits.resize(made_.column_bits.size() + static_cast<std::size_t>(words) + 1);
    std::uint64_t* bits = made_.column_bits.data() + keys.column_bits;
    for (const std::int64_t token : column_tokens(buffer, buffer.tokens, pattern)) {
      const std::int64_t row = token - buffer.tokens.begin;
      made_.columns.push_back(static_cast<int>(row));
      bits[row / 64] |= std::uint64_t{1} << (row % 64);
    }
    keys.columns = size(made_.columns) - keys.first_column;
    return keys;
  }

  /// Returns the place of the first rows of a buffer's lines of blocks.
  template <typename Buffer>
  int edges_of(Side side, int number, const SparsePattern& pattern, const Buffer& buffer) {
    const auto [at, added] = edges_.try_emplace(
        std::tuple{side, number, pattern.block(), pattern.rows()}, size(made_.edges));
    if (!added) return at->second;
    for (std::int64_t line = 0; line <= pattern.rows(); ++line) {
      const Range text{line * pattern.block(), Band::kNoEdge};
      const Range later = tokens_in(buffer, buffer.tokens, text);
      made_.edges.push_back(static_cast<int>(later.begin - buffer.tokens.begin));
    }
    return at->second;
  }

  /// Returns a pattern with its runs alone.
  const Pattern& runs_of(int document, std::int64_t head, const SparsePattern& pattern) {
    const auto [at, added] = runs_.try_emplace(std::pair{document, head});
    if (!added) return at->second;
    Pattern& made = at->second;
    if (pattern.form() == PatternForm::vertical_slash) {
      add_offsets(pattern, made);
    } else {
      add_blocks(pattern, made);
    }
    return made;
  }

  /// Adds the runs of all rows, which see blocks so far before the diagonal, and of all columns,
  /// which are seen so far behind it.
  void add_offsets(const SparsePattern& pattern, Pattern& made) {
    std::vector<BlockRun> behind, before;
    for (int offset = 0; offset < static_cast<int>(pattern.rows()); ++offset) {
      if (pattern.active(offset, 0)) extend(behind, offset);
    }
    for (auto run = behind.rbegin(); run != behind.rend(); ++run) {
      before.push_back({-run->last, -run->first});
    }
    made.relative = 1;
    made.q_runs = add_lines({before});
    made.k_runs = add_lines({behind});
  }

  /// Adds the runs of every row of blocks, and those of every column.
  void add_blocks(const SparsePattern& pattern, Pattern& made) {
    const auto lines = static_cast<std::size_t>(pattern.rows());
    std::vector<std::vector<BlockRun>> rows(lines), columns(lines);
    for (int row = 0; row < static_cast<int>(lines); ++row) {
      for (int column = 0; column <= row; ++column) {
        if (!pattern.active(row, column)) continue;
        extend(rows[static_cast<std::size_t>(row)], column);
        extend(columns[static_cast<std::size_t>(column)], row);
      }
    }
    made.q_runs = add_lines(rows);
    made.k_runs = add_lines(columns);
  }

  /// Adds a block behind those of the runs.
  static void extend(std::vector<BlockRun>& runs, int block) {
    if (!runs.empty() && runs.back().last == block - 1) {
      runs.back().last = block;
    } else {
      runs.push_back({block, block});
    }
  }

  /// Returns the place of the lines' first runs.
  int add_lines(const std::vector<std::vector<BlockRun>>& lines) {
    const int place = size(made_.first_runs);
    for (const std::vector<BlockRun>& runs : lines) {
      made_.first_runs.push_back(size(made_.runs));
      made_.runs.insert(made_.runs.end(), runs.begin(), runs.end());
    }
    made_.first_runs.push_back(size(made_.runs));
    return place;
  }

  const TaskList<bfloat16>& list_;
  SparseCall& made_;
  std::map<std::tuple<int, int, std::int64_t>, std::size_t> columns_;
  std::map<std::tuple<Side, int, std::int64_t, std::int64_t>, int> edges_;
  std::map<std::pair<int, std::int64_t>, Pattern> runs_;
};

/// Makes the sums of every row of keys that is a column of some heads.
void add_sums(int group, SparseCall& made) {
  std::map<std::tuple<int, int, int>, std::vector<int>> parts;  // by buffer, key-value head, row
  for (const GatheredKeys& keys : made.gathered) {
    for (int column = keys.first_column; column < keys.first_column + keys.columns; ++column) {
      const int row = made.columns[static_cast<std::size_t>(column)];
      parts[{keys.keys, keys.head / group, row}].push_back(column);
    }
  }
  for (const auto& [place, of] : parts) {
    const auto& [keys, kv_head, row] = place;
    const int first = size(made.summed);
    made.summed.insert(made.summed.end(), of.begin(), of.end());
    made.sums.push_back({keys, kv_head, row, first, size(made.summed)});
  }
}

/// Pairs of a strip of queries and a run of blocks that are not those of columns.
std::int64_t pairs_without(std::span<const int> columns, std::int64_t first, const Range& queries,
                           const Range& keys, const Band& band) {
  std::int64_t pairs = allowed_pairs(queries, keys, band);
  auto column = std::ranges::lower_bound(columns, keys.begin - first);
  for (; column != columns.end() && *column < keys.end - first; ++column) {
    pairs -= allowed_pairs(queries, {first + *column, first + *column + 1}, band);
  }
  return pairs;
}

}  // namespace

SparseCall make_sparse_call(Pass pass, const AttentionShape& shape,
                            const RotaryTable<float>& rotary, const TaskList<bfloat16>& list) {
  SparseCall made;
  made.call = make_call(shape, rotary, list);
  Patterns patterns(list, made);
  for (int task = 0; task < size(list.tasks); ++task) {
    made.call.entries[static_cast<std::size_t>(task)].pattern = patterns.add(task);
  }
  if (pass == Pass::backward) add_sums(shape.group(), made);
  return made;
}

UnitList sparse_units(const SparseCall& made, const AttentionShape& shape,
                      const TaskList<bfloat16>& list, Side side, int rows) {
  UnitList all = make_units(shape, list, unit_shape(shape, side, rows));
  if (side == Side::queries) return all;
  std::vector<Unit> gathered;
  for (const GatheredKeys& keys : made.gathered) {
    const int first_entry = size(all.entries);
    all.entries.insert(all.entries.end(), keys.tasks.begin(), keys.tasks.end());
    const std::int64_t token = list.keys[static_cast<std::size_t>(keys.keys)].tokens.begin;
    for (int first = 0; first < keys.columns; first += rows) {
      Unit unit;
      unit.first_column = keys.first_column + first;
      unit.columns = std::min(rows, keys.columns - first);
      const int* of = made.columns.data() + unit.first_column;
      unit.begin = token + of[0];
      unit.end = token + of[unit.columns - 1] + 1;
      unit.buffer = keys.keys;
      unit.kv_head = keys.head / shape.group();
      unit.head_begin = keys.head;
      unit.head_end = keys.head + 1;
      unit.first_entry = first_entry;
      unit.last_entry = size(all.entries);
      gathered.push_back(unit);
    }
  }
  // Earlier keys are seen by more queries: the longest units start first.
  std::ranges::stable_sort(gathered, {}, &Unit::begin);
  all.units.insert(all.units.begin(), gathered.begin(), gathered.end());
  return all;
}

void count_pairs(const SparseCall& made, const TaskList<bfloat16>& list) {
  if (list.pairs == nullptr) return;
  for (std::size_t number = 0; number < list.tasks.size(); ++number) {
    const TaskRows& rows = list.tasks[number];
    const Task& task = rows.task;
    if (task.q.empty() || task.k.empty()) continue;
    const auto& queries = list.queries[static_cast<std::size_t>(rows.query_rows)];
    const auto& keys = list.keys[static_cast<std::size_t>(rows.key_rows)];
    const Range text = position_range(keys, task.k);
    for (std::int64_t head = task.heads.begin; head < task.heads.end; ++head) {
      const SparsePattern& pattern = *list.index->of(task.document, head);
      const Pattern& of =
          made.patterns[static_cast<std::size_t>(made.call.entries[number].pattern + head)];
      const std::span columns = std::span(made.columns)
                                    .subspan(static_cast<std::size_t>(of.first_column),
                                             static_cast<std::size_t>(of.columns));
      const std::int64_t first = keys.tokens.begin;
      std::int64_t pairs = allowed_pairs(task.q, task.k, task.band) -
                           pairs_without(columns, first, task.q, task.k, task.band);
      for_each_strip(queries, task.q, pattern.block(), [&](Strip strip) {
        pattern.for_each_active(strip.row, text, [&](Range part) {
          pairs +=
              pairs_without(columns, first, strip.tokens, tokens_in(keys, task.k, part), task.band);
        });
      });
      list.pairs[list.index->place(task.document, head)] += pairs;
    }
  }
}

}  // namespace cadenza::kernels::device
