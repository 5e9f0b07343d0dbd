// SPDX-License-Identifier: Apache-2.0
#include "plan/cad/pairs.hpp"

#include <algorithm>

#include "plan/cad/items.hpp"

namespace cadenza::plan {
namespace {

void balance_two_sided(Items& items, Loads& loads) {
  while (true) {
    const Rank to = loads.least();
    if (loads.deficit(to) <= 0) return;
    // Both sides count (DistCA bounds the receivers alone): a receiver within tolerance still
    // takes from one above it.
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
  // What is left outside of the pool, which that code does not know, goes to whoever has least.
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
