// SPDX-License-Identifier: Apache-2.0
// Sets of tokens: disjoint ranges, ascending, that do not touch.
#pragma once

#include <algorithm>
#include <vector>

#include "cadenza/base/range.hpp"

namespace cadenza::plan {

using Ranges = std::vector<Range>;

inline void add(Ranges& set, Range range) {
  if (range.empty()) return;
  const auto first = std::find_if(set.begin(), set.end(),
                                  [&](const Range& held) { return held.end >= range.begin; });
  auto last = first;
  for (; last != set.end() && last->begin <= range.end; ++last) {
    range = {std::min(range.begin, last->begin), std::max(range.end, last->end)};
  }
  if (first == last) {
    set.insert(first, range);
  } else {
    *first = range;
    set.erase(first + 1, last);
  }
}

inline std::int64_t size(const Ranges& set) {
  std::int64_t tokens = 0;
  for (const Range& range : set) tokens += range.size();
  return tokens;
}

/// Calls visit(Range) for the parts of `range` that are not in the set.
template <typename Visit>
void for_each_gap(const Ranges& set, Range range, Visit&& visit) {
  for (const Range& held : set) {
    if (held.end <= range.begin) continue;
    if (held.begin >= range.end) break;
    if (range.begin < held.begin) visit(Range{range.begin, held.begin});
    range.begin = held.end;
  }
  if (!range.empty()) visit(range);
}

}  // namespace cadenza::plan
