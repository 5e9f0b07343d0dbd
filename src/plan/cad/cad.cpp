// SPDX-License-Identifier: Apache-2.0
// Placement `cad`: core attention disaggregation (DistCA, arXiv 2510.18121, section 4.2 and
// appendix B). It balances the weighted query-key pairs of servers, by capacity, at few bytes. All
// work begins at home; four phases (phases.hpp) change assignments of queries to servers:
// 1. balance_pairs: the server that lacks most takes head-tail items from servers above the
//    tolerance, those with most pairs per byte first; resident keys usually cost nothing;
// 2. refine_blocks: single blocks move where whole items were too coarse for the tolerance;
// 3. tile_documents: a document that several servers share is cut into tiles of queries x keys
//    where that moves fewer bytes and makes no server slower than the slowest;
// 4. cut_keys: servers still above the tolerance give parts of their tasks' keys away. As partial
//    outputs must then be merged, this is kept only if the plan is predicted to be faster.
// Then stages.cpp decides when rows travel and tasks run.
// Phases 1, 2 and 4 end because every move brings giver and receiver nearer to each other; phase 3
// visits each document once. Loads are integers and ties go by number: all ranks plan the same.
// Unlike DistCA, the tolerance bounds receivers and givers, unless attention.bound is one_sided.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/plan/placement.hpp"
#include "cadenza/plan/predict.hpp"
#include "plan/assemble.hpp"
#include "plan/cad/items.hpp"
#include "plan/cad/phases.hpp"

namespace cadenza::plan {
namespace {

void check(const Workload& workload, const config::Attention& attention) {
  if (workload.servers.empty()) {
    fail(ExitCode::usage, "placement: found no attention server; valid: at least 1");
  }
  if (attention.block < 1) {
    fail(ExitCode::usage, "attention.block: found {}; valid: 1 or more tokens", attention.block);
  }
  if (!attention.tolerance || !(*attention.tolerance >= 0)) {
    const std::string found =
        attention.tolerance ? fmt::format("{}", *attention.tolerance) : "auto, undecided";
    fail(ExitCode::usage, "attention.tolerance: found {}; valid: 0 or more", found);
  }
}

/// Tokens by which ranks that share evenly may differ.
constexpr std::int64_t kAlike = 1;

/// Of the longest document, in both passes.
double seconds_of_pair(const Workload& workload, const cost::Rates& rates) {
  const auto longest = std::ranges::max_element(workload.lengths);
  const int document = static_cast<int>(longest - workload.lengths.begin());
  const Range all{0, *longest};
  double seconds = 0;
  for (const Task& task : masked_tasks(workload, {document, all, all, {0, workload.shape.heads}})) {
    const PlacedTask placed = place_task(workload, 0, task);
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      seconds += placed_seconds(placed, pass, rates);
    }
  }
  return seconds / static_cast<double>(workload.weights_of(document).pairs(all));
}

/// By rank: a layer's work besides attention on the tokens of this tick, in pairs that take as long
/// on the pool; empty where that is not known, or alike. Ranks without tokens (mixed servers,
/// stages without a microbatch) count as the mean: they could attend more, but all of their rows
/// travel, and where ports are the limit the step took up to 13 % longer.
std::vector<Weight> other_work(const Workload& workload, const cost::Pool& pool) {
  const std::vector<std::int64_t> tokens = tokens_of_ranks(workload);
  std::int64_t least = std::numeric_limits<std::int64_t>::max(), most = 0, all = 0, trainers = 0;
  for (const Rank server : workload.servers) {
    const std::int64_t mine = tokens[at(server)];
    if (mine == 0) continue;
    least = std::min(least, mine);
    most = std::max(most, mine);
    all += mine;
    ++trainers;
  }
  const double token = pool.forward_seconds + pool.backward_seconds;
  if (token == 0 || trainers == 0 || most - least <= kAlike) return {};
  const double pair = seconds_of_pair(workload, pool.rates);
  std::vector<Weight> work;
  for (const std::int64_t count : tokens) {
    const auto mine = static_cast<double>(count == 0 ? all / trainers : count);
    work.push_back(static_cast<Weight>(mine * token / pair));
  }
  return work;
}

/// Whether keys of a document on several ranks go round a ring. DistCA's rules send all rows
/// straight from their homes.
bool hands_keys_on(const config::Attention& attention) {
  return attention.bound == config::Bound::two_sided &&
         attention.priority == config::Priority::resident;
}

/// How much less a layer must take for that nodes gather keys: they need memory for a node's keys
/// at once, rings for those of a rank.
constexpr double kWorthGathering = 0.97;

Plan plan_by_rule(const Workload& workload, const Homes& homes, const config::Attention& attention,
                  const cost::Pool& pool, std::vector<Assignment> assignments) {
  if (!hands_keys_on(attention)) return assemble(workload, homes, std::move(assignments));
  std::vector<int> nodes;
  for (Rank rank = 0; rank < workload.ranks; ++rank) {
    nodes.push_back(pool.rates.node_of(pool.world_rank(rank)));
  }
  const bool several = std::ranges::adjacent_find(nodes) != nodes.end() && nodes.back() > nodes[0];
  if (!several || workload.context == 1) {
    return staged_plan(workload, homes, std::move(assignments), attention.block, {}, false);
  }
  Plan rings = staged_plan(workload, homes, assignments, attention.block, nodes, false);
  Plan gathered =
      staged_plan(workload, homes, std::move(assignments), attention.block, std::move(nodes), true);
  if (gathered.stages.size() == rings.stages.size()) return rings;
  const auto seconds = [&](const Plan& plan) { return layer_seconds(std::span(&plan, 1), pool); };
  return seconds(gathered) < kWorthGathering * seconds(rings) ? gathered : rings;
}

}  // namespace

Plan cad(const Workload& workload, const config::Attention& attention, const cost::Pool& pool) {
  check(workload, attention);
  const Homes homes(workload);
  const bool published = !hands_keys_on(attention);
  Loads loads(workload, *attention.tolerance,
              published ? std::vector<Weight>{} : other_work(workload, pool));
  Residency residency(workload, homes, !published);
  const std::vector<DocumentShard> shards = make_shards(workload, homes, attention.block);
  std::vector<Assignment> assignments =
      balance_pairs(workload, shards, attention, loads, residency);
  coalesce(workload, assignments);
  // DistCA's code, which one_sided follows, moves whole pairs only.
  if (attention.bound == config::Bound::two_sided) {
    refine_blocks(workload, attention.block, loads, residency, assignments);
  }
  if (!attention.split_keys)
    return plan_by_rule(workload, homes, attention, pool, std::move(assignments));
  coalesce(workload, assignments);
  tile_documents(workload, homes, attention.block, loads, residency, assignments);
  std::vector<Assignment> cut = assignments;
  const bool faster = cut_keys(workload, attention.block, loads, cut);
  Plan plan = plan_by_rule(workload, homes, attention, pool, std::move(assignments));
  if (!faster) return plan;
  Plan other = plan_by_rule(workload, homes, attention, pool, std::move(cut));
  const bool falls = predict(other, pool).predicted_seconds < predict(plan, pool).predicted_seconds;
  return falls ? other : plan;
}

namespace {

void balance_two_sided(Items& items, Loads& loads) {
  while (true) {
    const Rank to = loads.least();
    if (loads.deficit(to) <= 0) return;
    // Givers are bounded too (DistCA bounds only receivers): a receiver within the tolerance still
    // takes from a server above it.
    Candidate best = items.search(to, Sources::must, 0);
    if (best.item < 0 && loads.under(to)) best = items.search(to, Sources::above_mean, 0);
    if (best.item < 0) best = items.search(to, Sources::outside, 1);
    if (best.item < 0) return;
    items.apply(best, to);
  }
}

void balance_one_sided(Items& items, Loads& loads) {
  std::vector<Rank> receivers = loads.servers();
  std::stable_sort(receivers.begin(), receivers.end(),
                   [&](Rank a, Rank b) { return loads.excess(a) < loads.excess(b); });
  for (const Rank to : receivers) {
    while (loads.deficit(to) > 0 && static_cast<double>(loads.deficit(to)) > loads.slack(to)) {
      const Candidate best = items.search(to, Sources::above_mean, 0);
      if (best.item < 0 || best.offer.pairs.empty()) break;
      items.apply(best, to);
    }
  }
  // Work left outside the pool, which DistCA's code does not have, goes to the least loaded server.
  for (Candidate rest = items.search(loads.least(), Sources::outside, 1); rest.item >= 0;
       rest = items.search(loads.least(), Sources::outside, 1)) {
    items.apply(rest, loads.least());
  }
}

}  // namespace

std::vector<Assignment> balance_pairs(const Workload& workload,
                                      const std::vector<DocumentShard>& shards,
                                      const config::Attention& attention, Loads& loads,
                                      Residency& residency) {
  const Score score(attention.priority, workload.shape, residency);
  const bool one_sided = attention.bound == config::Bound::one_sided;
  Items items(workload, shards, score, loads, residency, one_sided);
  if (one_sided) {
    balance_one_sided(items, loads);
  } else {
    balance_two_sided(items, loads);
  }
  return items.assignments();
}

}  // namespace cadenza::plan
