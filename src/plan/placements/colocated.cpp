// SPDX-License-Identifier: Apache-2.0
// Placements `colocated` and `all_gather`: attention stays where its queries are. With dedicated
// servers, trainer t uses server t mod N whatever the loads: the baseline that CAD is measured
// against. Where a context group shares documents, this is the all-gather of Llama 3 (arXiv
// 2407.21783), which moves all keys at once. The collective moves all keys of the group; plans do
// so on request (attention.gather), to compare with such systems, else only the keys that are seen.
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
