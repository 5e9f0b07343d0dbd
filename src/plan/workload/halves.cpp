// SPDX-License-Identifier: Apache-2.0
// The two halves of a tick in ping-pong: one computes while the other's rows travel.
#include <algorithm>
#include <iterator>

#include "cadenza/base/error.hpp"
#include "cadenza/plan/placement.hpp"
#include "plan/workload/sharding.hpp"

namespace cadenza::plan {
namespace {

/// By document: how many of its first queries are in the first half.
std::vector<std::int64_t> cuts_of(const Workload& workload) {
  std::vector<Rank> group(workload.lengths.size(), 0);
  for (const Home& home : workload.homes) {
    group[static_cast<std::size_t>(home.document)] = home.rank / workload.context;
  }
  std::vector<std::int64_t> cuts;
  for (std::size_t end = 0; end < group.size();) {
    const std::size_t begin = end;
    while (end < group.size() && group[end] == group[begin]) ++end;
    const std::span<const std::int64_t> lengths(workload.lengths);
    std::ranges::copy(half_cuts(lengths.subspan(begin, end - begin)), std::back_inserter(cuts));
  }
  return cuts;
}

}  // namespace

std::array<Workload, 2> halves(const Workload& workload) {
  if (!workload.order.natural()) {
    fail(ExitCode::usage,
         "attention.overlap: found ping_pong with tokens in {} stripes, whose first half sees keys "
         "of the second; valid: none",
         workload.order.stripes);
  }
  if (!workload.mask.is_causal()) {
    fail(ExitCode::usage,
         "attention.overlap: found ping_pong with queries that see later keys, some of them of the "
         "second half; valid: none");
  }
  const std::vector<std::int64_t> cuts = cuts_of(workload);
  std::array<Workload, 2> both = {workload, workload};
  std::vector<Home> first;
  std::vector<Home> second;
  for (const Home& home : workload.homes) {
    const std::int64_t cut = cuts[static_cast<std::size_t>(home.document)];
    const Range before = intersect(home.tokens, {0, cut});
    const Range after = intersect(home.tokens, {cut, home.tokens.end});
    if (!before.empty()) first.push_back({home.rank, home.document, before});
    if (!after.empty()) second.push_back({home.rank, home.document, after});
  }
  first.insert(first.end(), second.begin(), second.end());
  for (std::size_t half = 0; half < both.size(); ++half) {
    both[half].homes = first;
    both[half].queries.clear();
    for (std::size_t document = 0; document < cuts.size(); ++document) {
      both[half].queries.push_back(half == 0 ? Range{0, cuts[document]}
                                             : Range{cuts[document], workload.lengths[document]});
    }
  }
  return both;
}

}  // namespace cadenza::plan
