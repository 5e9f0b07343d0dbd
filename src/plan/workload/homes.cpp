// SPDX-License-Identifier: Apache-2.0
#include "plan/workload/homes.hpp"

#include <algorithm>
#include <tuple>

namespace cadenza::plan {

Homes::Homes(const Workload& workload)
    : homes_(workload.homes), offsets_(workload.lengths.size() + 1, 0) {
  std::sort(homes_.begin(), homes_.end(), [](const Home& a, const Home& b) {
    return std::tie(a.document, a.tokens.begin, a.rank) <
           std::tie(b.document, b.tokens.begin, b.rank);
  });
  for (const Home& home : homes_) ++offsets_[static_cast<std::size_t>(home.document) + 1];
  for (std::size_t i = 1; i < offsets_.size(); ++i) offsets_[i] += offsets_[i - 1];
}

std::span<const Home> Homes::of(int document) const {
  const auto index = static_cast<std::size_t>(document);
  return std::span(homes_).subspan(offsets_[index], offsets_[index + 1] - offsets_[index]);
}

std::int64_t Homes::held(Rank rank, int document, Range tokens) const {
  std::int64_t count = 0;
  for_each_part(document, tokens, [&](const Home& part) {
    if (part.rank == rank) count += part.tokens.size();
  });
  return count;
}

void unite(std::vector<Home>& rows) {
  std::sort(rows.begin(), rows.end(), [](const Home& a, const Home& b) {
    return std::tie(a.document, a.rank, a.tokens.begin) <
           std::tie(b.document, b.rank, b.tokens.begin);
  });
  std::size_t kept = 0;
  for (const Home& next : rows) {
    if (kept > 0) {
      Home& last = rows[kept - 1];
      if (last.document == next.document && last.rank == next.rank &&
          next.tokens.begin <= last.tokens.end) {
        last.tokens.end = std::max(last.tokens.end, next.tokens.end);
        continue;
      }
    }
    rows[kept++] = next;
  }
  rows.resize(kept);
}

}  // namespace cadenza::plan
