// SPDX-License-Identifier: Apache-2.0
// Maps a sparse pattern, which counts positions in the text, to rows of buffers.
#pragma once

#include <vector>

#include "buffers.hpp"
#include "cadenza/kernels/attention.hpp"

namespace cadenza::kernels {

/// Returns the tokens of `part` that lie in `text`.
template <typename Buffer>
Range tokens_in(const Buffer& buffer, Range part, Range text) {
  const std::int64_t step = buffer.positions.step;
  const std::int64_t first = position_of(buffer, part.begin);
  const auto up_to = [&](std::int64_t at) {  // the first token at or behind a position
    if (at <= first) return part.begin;
    if (buffer.positions.run == 0) {
      return std::min(part.end, part.begin + (at - first + step - 1) / step);
    }
    Range left = part;
    while (!left.empty()) {
      const std::int64_t middle = left.begin + left.size() / 2;
      (position_of(buffer, middle) < at ? left.begin : left.end) =
          position_of(buffer, middle) < at ? middle + 1 : middle;
    }
    return left.begin;
  };
  return {up_to(text.begin), up_to(text.end)};
}

/// Returns the text from the first to the last token of `part`, which must not be empty.
template <typename Buffer>
Range position_range(const Buffer& buffer, Range part) {
  return {position_of(buffer, part.begin), position_of(buffer, part.end - 1) + 1};
}

/// Queries of one row of blocks, or keys of one column of them.
struct Strip {
  Range tokens;
  std::int64_t row = 0;  ///< row, or column, of blocks
};

/// Calls visit(Strip) for the rows or columns of blocks that contain `tokens` of a buffer.
template <typename Buffer, typename Visit>
void for_each_strip(const Buffer& buffer, Range tokens, std::int64_t block, Visit&& visit) {
  while (!tokens.empty()) {
    const std::int64_t row = position_of(buffer, tokens.begin) / block;
    const Range part = tokens_in(buffer, tokens, {row * block, (row + 1) * block});
    visit(Strip{part, row});
    tokens.begin = part.end;
  }
}

/// Returns the tokens of `keys` that are columns of a pattern.
template <typename Real>
std::vector<std::int64_t> column_tokens(const KeyRows<Real>& buffer, Range keys,
                                        const SparsePattern& pattern) {
  std::vector<std::int64_t> tokens;
  if (keys.empty()) return tokens;
  const Range text = position_range(buffer, keys);
  auto column = std::ranges::lower_bound(pattern.columns(), text.begin);
  for (; column != pattern.columns().end() && *column < text.end; ++column) {
    const Range found = tokens_in(buffer, keys, {*column, *column + 1});
    if (!found.empty()) tokens.push_back(found.begin);
  }
  return tokens;
}

/// Splits tasks: those of documents without a pattern unchanged, the others as `sparse`.
template <typename Real>
struct SplitTasks {
  TaskList<Real> dense;
  TaskList<Real> sparse;
};

template <typename Real>
SplitTasks<Real> split_tasks(const TaskList<Real>& list) {
  SplitTasks<Real> split{list, list};
  const auto is_dense = [&](const TaskRows& entry) {
    return list.index->is_dense(entry.task.document);
  };
  std::erase_if(split.sparse.tasks, is_dense);
  std::erase_if(split.dense.tasks, [&](const TaskRows& entry) { return !is_dense(entry); });
  split.dense.index = nullptr;
  return split;
}

/// Expands sparse tasks to the same pairs as dense tasks of one head each: one for every range of
/// keys in active blocks of a row, and for every range of columns. For kernels that do not support
/// patterns; the list is large.
template <typename Real>
TaskList<Real> expanded(const TaskList<Real>& list);

}  // namespace cadenza::kernels
