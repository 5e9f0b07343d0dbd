// SPDX-License-Identifier: Apache-2.0
// Context parallelism whose degree depends on the document: long documents are cut over many ranks
// of a context group, short ones stay whole (Megatron Core's dynamic context parallelism; FlexSP,
// arXiv 2412.01523; ByteScale, arXiv 2502.21231; with one rank or all of them FlashCP, arXiv
// 2606.08476). Megatron Core runs the documents of a rank one after another, FlexSP has a degree
// for a packed microbatch; here documents of several degrees share a microbatch, so that the stages
// of a pipeline need nothing else.
#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "cadenza/base/at.hpp"
#include "cadenza/cost/flops.hpp"
#include "plan/workload/sharding.hpp"

namespace cadenza::plan {
namespace {

/// `size` neighbouring ranks from `first` on.
struct Subgroup {
  int first = 0;
  int size = 1;
};

/// A subgroup with what its fullest rank would have with one more document.
struct Choice {
  Subgroup subgroup;
  double load = std::numeric_limits<double>::infinity();  ///< cost over a usual rank's, tokens
  double tokens = std::numeric_limits<double>::infinity();
};

/// Load of a rank over the mean that no larger subgroup mends: fewer ranks have fewer messages.
constexpr double kMostLoad = 1.02;

/// Sizes of subgroups, ascending: each divides the next, the last is the group.
std::vector<int> sizes_of(const DegreeRule& rule) {
  if (rule.ends_only) return rule.ranks > 1 ? std::vector{1, rule.ranks} : std::vector{1};
  std::vector<int> sizes = {rule.ranks};
  while (sizes.back() > 1) {
    int factor = 2;
    while (sizes.back() % factor != 0) ++factor;
    sizes.push_back(sizes.back() / factor);
  }
  std::ranges::reverse(sizes);
  return sizes;
}

/// Gives documents subgroups, the costliest first: of the smallest subgroups in which no rank
/// exceeds kMostLoad and the tokens that it may hold, the one with the least load.
class Dealer {
 public:
  Dealer(const DegreeRule& rule, double cost, std::int64_t tokens)
      : rule_(rule),
        sizes_(sizes_of(rule)),
        loads_(ranks(), 0.0),
        tokens_(ranks(), 0.0),
        mean_load_(cost / speed({0, rule.ranks})),
        most_tokens_(std::max(
            1.0, rule.longest * static_cast<double>(tokens) / static_cast<double>(rule.ranks))) {}

  Subgroup deal(double cost, std::int64_t length) {
    Choice best;
    for (const int size : sizes_) {
      const Choice choice = least_loaded(size, cost, static_cast<double>(length));
      if (better(choice, best)) best = choice;
      if (fits(best) && best.load <= kMostLoad * mean_load_) break;
    }
    add(best.subgroup, cost, static_cast<double>(length));
    return best.subgroup;
  }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(rule_.ranks); }

  double capacity(int rank) const {
    return rule_.capacities.empty() ? 1.0 : usual_ranks(rule_.capacities[at(rank)]);
  }

  /// A subgroup's speed in usual ranks.
  double speed(const Subgroup& subgroup) const {
    double sum = 0;
    for (int rank = 0; rank < subgroup.size; ++rank) sum += capacity(subgroup.first + rank);
    return sum;
  }

  bool fits(const Choice& choice) const { return choice.tokens <= most_tokens_; }

  /// Too many tokens are worse than any load.
  bool better(const Choice& a, const Choice& b) const {
    if (fits(a) != fits(b)) return fits(a);
    return fits(a) ? a.load < b.load : a.tokens < b.tokens;
  }

  Choice least_loaded(int size, double cost, double length) const {
    Choice best;
    for (int first = 0; first < rule_.ranks; first += size) {
      Choice choice{{first, size}, 0, 0};
      const double speed = this->speed(choice.subgroup);
      for (int rank = first; rank < first + size; ++rank) {
        choice.load = std::max(choice.load, loads_[at(rank)] + cost / speed);
        choice.tokens =
            std::max(choice.tokens, tokens_[at(rank)] + length * capacity(rank) / speed);
      }
      if (better(choice, best)) best = choice;
    }
    return best;
  }

  void add(const Subgroup& subgroup, double cost, double length) {
    const double speed = this->speed(subgroup);
    for (int rank = subgroup.first; rank < subgroup.first + subgroup.size; ++rank) {
      loads_[at(rank)] += cost / speed;
      tokens_[at(rank)] += length * capacity(rank) / speed;
    }
  }

  const DegreeRule& rule_;
  std::vector<int> sizes_;
  std::vector<double> loads_;   // by rank: cost over capacity
  std::vector<double> tokens_;  // by rank
  double mean_load_;
  double most_tokens_;
};

}  // namespace

std::vector<Home> shard_by_degree(std::span<const std::int64_t> lengths, int first,
                                  const DegreeRule& rule) {
  std::vector<double> costs;
  for (const std::int64_t length : lengths) {
    costs.push_back(rule.cost(length));
  }
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) { return costs[i]; });
  Dealer dealer(rule, std::accumulate(costs.begin(), costs.end(), 0.0),
                std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}));
  // One cutter for each subgroup, which deals out evenly what does not divide in its documents.
  std::map<std::pair<int, int>, std::vector<std::size_t>> members;
  for (const std::size_t i : order) {
    const Subgroup subgroup = dealer.deal(costs[i], lengths[i]);
    members[{subgroup.first, subgroup.size}].push_back(i);
  }
  std::vector<Home> homes;
  for (const auto& [subgroup, documents] : members) {
    Cut cut{subgroup.second, 2, true, {}};
    if (!rule.capacities.empty()) {
      const auto own = std::span(rule.capacities)
                           .subspan(at(subgroup.first), static_cast<std::size_t>(cut.ranks));
      cut.capacities.assign(own.begin(), own.end());
    }
    std::vector<std::int64_t> own_lengths;
    for (const std::size_t i : documents) own_lengths.push_back(lengths[i]);
    for (Home home : shard(own_lengths, 0, cut)) {
      home.rank += subgroup.first;
      home.document = first + static_cast<int>(documents[at(home.document)]);
      homes.push_back(home);
    }
  }
  join_homes(homes);
  return homes;
}

}  // namespace cadenza::plan
