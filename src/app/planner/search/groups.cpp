// SPDX-License-Identifier: Apache-2.0
#include "app/planner/search/groups.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "app/planner/search/search.hpp"
#include "cadenza/base/error.hpp"

namespace cadenza::app {
namespace {

constexpr double kLower = 0.998;  ///< times a bound: a larger microbatch is worth a look
constexpr double kWorkOfLarger = kMostWork / 16;  ///< of a sample with a larger microbatch
constexpr std::size_t kServerCounts = 2;          ///< numbers of dedicated servers that are tried

class GroupList {
 public:
  GroupList(const config::Experiment& given, TypicalSteps& steps, Room& room)
      : given_(given), steps_(steps), room_(room) {
    add_layouts(groups_, arrangements(given_));
    add_served_groups();
  }

  std::vector<Group> take() { return std::move(groups_); }

 private:
  static auto degrees_of(const Candidate& one) {
    const config::Parallel& p = one.parallel;
    const config::Attention& a = one.attention;
    return std::tuple(p.data, p.pipeline, p.chunks, p.tensor, p.context, a.servers, a.mixed);
  }

  /// Layout by layout, whose arrangements are neighbours.
  void add_layouts(std::vector<Group>& groups, std::span<const Candidate> all) {
    while (!all.empty()) {
      const auto differs = [&](const Candidate& one) {
        return degrees_of(one) != degrees_of(all.front());
      };
      const auto mine = static_cast<std::size_t>(std::ranges::find_if(all, differs) - all.begin());
      add_layout(groups, all.first(mine));
      all = all.subspan(mine);
    }
  }

  /// The placements of a layout, and the same with larger microbatches, as long as they fit and
  /// lower one of the bounds: larger matrices and fewer launches and collectives count in it, as
  /// does the fill of a pipeline. No bound says what `dynamic` gains, for which more documents are
  /// easier to balance.
  void add_layout(std::vector<Group>& groups, std::span<const Candidate> placements) {
    std::vector<Group> level, next;
    families_ += 2;
    for (const Candidate& one : placements) {
      level.push_back(group_of(one, families_ + (disaggregates(one) ? 1 : 0)));
    }
    for (; !level.empty(); level = std::move(next)) {
      next.clear();
      bool lower = false;
      for (const Group& group : level) {
        const auto larger = with_larger_microbatch(given_, group.arrangement);
        if (group.settled || !larger) continue;
        Group one = group_of(*larger, group.family);
        if (one.settled || one.work > kWorkOfLarger) continue;
        lower = lower || one.expected < kLower * group.expected ||
                one.arrangement.attention.placement == config::PlacementKind::dynamic;
        next.push_back(std::move(one));
      }
      if (!lower) next.clear();
      for (Group& group : level) add_with_fewer_rows(groups, std::move(group));
    }
  }

  /// Adds the group, and where rows beyond a rank's share may not fit the same with fewer of them.
  void add_with_fewer_rows(std::vector<Group>& groups, Group group) {
    const auto fewer = with_fewer_rows(given_, group.arrangement);
    const auto is_tight = [&](const Judged& variant) {
      return variant.outcome != Outcome::too_large && room_.is_tight(variant);
    };
    const bool tight = std::ranges::any_of(group.variants, is_tight);
    groups.push_back(std::move(group));
    if (!fewer || !tight) return;
    groups.push_back(group_of(*fewer, groups.back().family));
    groups.back().spare = true;
  }

  Group group_of(const Candidate& arrangement, std::size_t family) {
    Group group{arrangement, family, false, {}};
    ++made_;
    for (const Candidate& variant : variants(given_, arrangement)) {
      Judged& judged = group.variants.emplace_back();
      judged.candidate = variant;
      judged.plans = made_;
      const config::Experiment e = variant.of(given_);
      std::vector<PackedStep>& steps = steps_.in_microbatches_of(e);
      judged.bound = mean_of(steps, [&](auto& step) { return step.least_time.seconds(e); });
      judged.model_flops = mean_of(steps, [](auto& step) { return step.model_flops; });
    }
    std::ranges::stable_sort(group.variants, {}, &Judged::bound);
    group.work = work_of_sample(arrangement.of(given_));
    weed(group);
    return group;
  }

  /// What does not fit whatever its plans are is not looked at.
  void weed(Group& group) {
    for (Judged& variant : group.variants) {
      room_.measure(variant);
      if (!room_.has(variant)) variant.outcome = Outcome::too_large;
    }
    const auto first = std::ranges::find_if(group.variants, [](const Judged& variant) {
      return variant.outcome != Outcome::too_large;
    });
    group.settled = first == group.variants.end();
    group.expected = group.settled ? group.variants.front().bound : first->bound;
  }

  /// Of all numbers of dedicated servers those with the least bounds: there, attention and all
  /// other work are shared out best.
  void add_served_groups() {
    std::array<std::map<std::int64_t, std::vector<Group>>, 2> by_servers;  // dedicated, mixed
    std::vector<Group> served;
    add_layouts(served, served_arrangements(given_));
    for (Group& group : served) {
      const config::Attention& a = group.arrangement.attention;
      by_servers[a.mixed ? 1 : 0][a.servers].push_back(std::move(group));
    }
    const auto bound = [](const auto& count) {
      const auto least = [](const Group& group) { return group.variants.front().bound; };
      return least(*std::ranges::min_element(count.second, {}, least));
    };
    for (auto& counts : by_servers) {
      for (std::size_t i = 0; i < kServerCounts && !counts.empty(); ++i) {
        const auto best = std::ranges::min_element(counts, {}, bound);
        std::ranges::move(best->second, std::back_inserter(groups_));
        counts.erase(best);
      }
    }
  }

  const config::Experiment& given_;
  TypicalSteps& steps_;
  Room& room_;
  std::vector<Group> groups_;
  std::size_t families_ = 0;
  std::size_t made_ = 0;  ///< groups, those too that are not listed
};

}  // namespace

std::vector<Group> list_groups(const config::Experiment& given, TypicalSteps& steps, Room& room) {
  std::vector<Group> groups = GroupList(given, steps, room).take();
  if (groups.empty()) {
    fail(ExitCode::usage,
         "attention.placement: found auto, but no layout of {} trainers fits this model and batch; "
         "valid: fewer trainers, more microbatches in batch.tokens, or parallel.pipeline, tensor "
         "and context set to auto",
         given.parallel.trainers());
  }
  return groups;
}

}  // namespace cadenza::app
