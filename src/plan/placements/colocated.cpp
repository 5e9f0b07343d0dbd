// SPDX-License-Identifier: Apache-2.0
// Placement `colocated`: attention stays where its tokens are. With dedicated servers every trainer
// has one server of its own choosing, without regard to load: the baseline that CAD is measured
// against.
#include <algorithm>

#include "cadenza/base/error.hpp"
#include "cadenza/plan/placement.hpp"
#include "plan/assemble.hpp"

namespace cadenza::plan {

Plan colocated(const Workload& workload) {
  const std::vector<Rank>& pool = workload.servers;
  if (pool.empty())
    fail(ExitCode::usage, "placement: found no attention server; valid: at least 1");
  const auto server_of = [&](Rank rank) {
    if (std::binary_search(pool.begin(), pool.end(), rank)) return rank;
    return pool[static_cast<std::size_t>(rank) % pool.size()];
  };
  std::vector<Assignment> assignments;
  assignments.reserve(workload.homes.size());
  for (const Home& home : workload.homes) {
    assignments.push_back({home.document, home.tokens, server_of(home.rank)});
  }
  return assemble(workload, Homes(workload), std::move(assignments));
}

}  // namespace cadenza::plan
