// SPDX-License-Identifier: Apache-2.0
// Placements `colocated` and `all_gather`: attention stays where its queries are. With dedicated
// servers every trainer has one server of its own choosing, without regard to load: the baseline
// that CAD is measured against. Where a context group shares documents it is the all-gather of
// Llama 3 (arXiv 2407.21783): all keys come at once. The collective brings all of the group; plans
// do so if asked, for comparison with systems that use it, and else move what a rank's queries see.
#include <algorithm>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/plan/placement.hpp"
#include "plan/assemble.hpp"

namespace cadenza::plan {
namespace {

Plan place_at_home(const Workload& workload, bool gathers_all) {
  const std::vector<Rank>& pool = workload.servers;
  if (pool.empty())
    fail(ExitCode::usage, "placement: found no attention server; valid: at least 1");
  const auto server_of = [&](Rank rank) {
    if (std::binary_search(pool.begin(), pool.end(), rank)) return rank;
    return pool[at(rank) % pool.size()];
  };
  std::vector<Assignment> assignments;
  assignments.reserve(workload.homes.size());
  for (const Home& home : workload.homes) {
    assignments.push_back({home.document, home.tokens, server_of(home.rank)});
  }
  return assemble(workload, Homes(workload), std::move(assignments), gathers_all);
}

}  // namespace

Plan colocated(const Workload& workload) {
  return place_at_home(workload, false);
}

Plan all_gather(const Workload& workload, config::Gather gather) {
  return place_at_home(workload, gather == config::Gather::all);
}

}  // namespace cadenza::plan
