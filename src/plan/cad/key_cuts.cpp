// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cadenza/base/at.hpp"
#include "plan/cad/phases.hpp"
#include "plan/cad/tiles.hpp"

namespace cadenza::plan {
namespace {

/// A cut of a task: another server computes its keys before `key`.
struct Cut {
  std::size_t assignment = 0;
  std::int64_t key = 0;
  Weight pairs = 0;
  double gain = 0;  ///< pairs per row that travels
};

class KeyCutter {
 public:
  KeyCutter(const Workload& workload, std::int64_t block, Loads& loads,
            std::vector<Assignment>& assignments)
      : workload_(workload),
        block_(block),
        loads_(loads),
        assignments_(assignments),
        by_rank_(static_cast<std::size_t>(workload.ranks)) {
    for (std::size_t i = 0; i < assignments_.size(); ++i) on(assignments_[i].server).push_back(i);
  }

  bool run() {
    std::vector<Rank> over;
    for (Rank server : loads_.servers()) {
      if (loads_.over(server)) over.push_back(server);
    }
    std::stable_sort(over.begin(), over.end(),
                     [&](Rank a, Rank b) { return loads_.excess(a) > loads_.excess(b); });
    if (over.empty()) return false;
    const Weight before = loads_.excess(over.front());
    for (const Rank from : over) {
      while (loads_.over(from) && give(from, loads_.least())) {
      }
    }
    return std::all_of(over.begin(), over.end(),
                       [&](Rank server) { return loads_.excess(server) < before; });
  }

 private:
  std::vector<std::size_t>& on(Rank rank) { return by_rank_[at(rank)]; }

  /// Makes the best cut; false where there is none. Cutting ends because each cut brings both
  /// servers nearer to their shares.
  bool give(Rank from, Rank to) {
    const Weight limit = std::min(loads_.surplus(from), loads_.deficit(to));
    Cut best;
    for (std::size_t i : on(from)) consider(i, limit, best);
    if (best.pairs == 0) return false;
    Assignment& rest = assignments_[best.assignment];
    const Range keys = keys_of(workload_, rest);
    const Assignment gone{rest.document, rest.q, to, {keys.begin, best.key}};
    rest.k = {best.key, keys.end};
    loads_.add(from, -best.pairs);
    loads_.add(to, best.pairs);
    on(to).push_back(assignments_.size());
    assignments_.push_back(gone);
    return true;
  }

  /// Sets `best` to the largest cut of assignment `i` within `limit`, if that gains more.
  void consider(std::size_t i, Weight limit, Cut& best) const {
    const Assignment& a = assignments_[i];
    const Range keys = keys_of(workload_, a);
    const Weights mask = workload_.weights_of(a.document);
    const auto pairs_to = [&](std::int64_t key) { return mask.pairs(a.q, {keys.begin, key}); };
    const std::int64_t first = keys.begin / block_;
    std::int64_t count = 0;
    std::int64_t above = (keys.end - 1) / block_ - first + 1;
    while (above - count > 1) {
      const std::int64_t middle = (count + above) / 2;
      (pairs_to((first + middle) * block_) <= limit ? count : above) = middle;
    }
    if (count == 0) return;
    const std::int64_t key = (first + count) * block_;
    const Weight pairs = pairs_to(key);
    const double gain =
        static_cast<double>(pairs) / static_cast<double>(a.q.size() + key - keys.begin);
    if (gain > best.gain) best = {i, key, pairs, gain};
  }

  const Workload& workload_;
  std::int64_t block_;
  Loads& loads_;
  std::vector<Assignment>& assignments_;
  std::vector<std::vector<std::size_t>> by_rank_;  // indices of assignments
};

}  // namespace

bool cut_keys(const Workload& workload, std::int64_t block, Loads& loads,
              std::vector<Assignment>& assignments) {
  return KeyCutter(workload, block, loads, assignments).run();
}

}  // namespace cadenza::plan
