// SPDX-License-Identifier: Apache-2.0
#include "app/planner/search/search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "app/planner/all_cores.hpp"
#include "app/planner/search/finals.hpp"
#include "app/planner/search/group.hpp"
#include "app/planner/search/groups.hpp"
#include "app/planner/search/looks.hpp"
#include "app/planner/search/room.hpp"
#include "app/planner/search/search_report.hpp"
#include "app/planner/search/typical_steps.hpp"
#include "app/planner/terminal.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/config/load.hpp"

namespace cadenza::app {
namespace {

constexpr double kMostWorkOfOne = 3 * kMostWork;
constexpr double kHopeless = 1.5;   ///< times what is known to be possible
constexpr std::size_t kAtOnce = 4;  ///< are looked at, on as many cores as there are

class Search {
 public:
  Search(const config::Experiment& given, const data::Corpus& corpus,
         const config::Machine& machine, bool progress)
      : given_(given),
        machine_(machine),
        corpus_(corpus),
        steps_(given_, corpus, machine),
        room_(given_, memory_of_rank(given, machine)),
        groups_(list_groups(given_, steps_, room_)) {
    progress_.emplace(progress, static_cast<std::int64_t>(groups_.size()), "layout", 0, stderr);
  }

  /// The most promising one is looked at more closely until the best is simulated: bounds, then
  /// estimates on larger and larger parts of a step, then all of it.
  Choice run() {
    for (int times = 0; times < 2 && ranked_.empty(); ++times) {
      most_work_ = work_ + kMostWork;
      for (auto next = next_few(); !next.empty(); next = next_few()) look(next);
      if (ranked_.empty()) judge_long_ones(long_);
    }
    judge_best_long_one();
    for (const bool cad : {false, true}) compare(cad);
    for (const bool cad : {false, true}) judge_twin_of_best(cad);
    if (ranked_.empty()) visit_by_memory();
    if (!ranked_.empty()) decide_over_steps();
    progress_->finish();
    if (ranked_.empty()) refuse();
    const SearchReport found = report();
    return {ranked_.front().candidate.of(given_), describe(found),   {},
            static_cast<int>(ranked_.size()),     considered(found), cad_};
  }

 private:
  /// Ranks the best by more steps. The others follow, by one.
  void decide_over_steps() {
    std::ranges::stable_sort(ranked_, {}, &Judged::seconds);
    Finals finals =
        compare_over_steps(given_, ranked_, leaner(), corpus_, machine_, room_,
                           [&](const std::string& what) { progress_->show(seen(), what); });
    if (finals.ranked.empty() && finals.too_large.empty()) return compare_by_one_step();
    for (const Judged& large : finals.too_large) variant_of(large) = large;
    ranked_ = std::move(finals.ranked);
    cad_ = finals.cad;
  }

  /// Where more steps are too much work.
  void compare_by_one_step() {
    const auto best = [&](bool cad) {
      return std::ranges::find(ranked_, cad,
                               [](const Judged& one) { return disaggregates(one.candidate); });
    };
    const auto with = best(true), without = best(false);
    if (with == ranked_.end() || without == ranked_.end()) return;
    cad_ = ratio_of({&without->seconds, 1}, {&with->seconds, 1});
  }

  Judged& variant_of(const Judged& judged) {
    const auto plans = [](const Group& group) { return group.variants.front().plans; };
    Group& group = *std::ranges::find(groups_, judged.plans, plans);
    return *std::ranges::find_if(group.variants, [&](const Judged& one) {
      return one.candidate.recompute == judged.candidate.recompute &&
             one.candidate.parallel.shard == judged.candidate.parallel.shard;
    });
  }

  /// Of what was not simulated, since another with the same plans is faster and fits as well: time
  /// and memory reckoned from that one.
  std::vector<Judged> leaner() {
    std::vector<Judged> found;
    for (const Group& group : groups_) {
      const auto like = std::ranges::find(group.variants, Outcome::simulated, &Judged::outcome);
      if (like == group.variants.end()) continue;
      Judged least = *like;
      room_.measure(least);
      for (Judged one : group.variants) {
        if (one.outcome == Outcome::simulated || one.outcome == Outcome::too_large) continue;
        room_.measure(one);
        one.bytes += like->bytes - least.bytes;
        one.seconds = like->seconds + one.bound - like->bound;
        one.work = like->work;
        one.expected = 0;
        if (room_.has(one)) found.push_back(one);
      }
    }
    return found;
  }

  std::vector<Judged> too_large() const {
    std::vector<Judged> large;
    for (const Group& group : groups_) {
      std::ranges::copy_if(group.variants, std::back_inserter(large), [](const Judged& variant) {
        return variant.outcome == Outcome::too_large;
      });
    }
    return large;
  }

  /// The next ones to look at, none when the best is known or there is no time left: the best so
  /// far of each kind, so that one is soon simulated, which excludes others; and those that promise
  /// more than what is known of them says.
  std::vector<Group*> next_few() {
    std::vector<Group*> few;
    early_ = early_ && work_ < most_work_ - kMostWork / 2;
    const Ratios ratios(groups_);
    double work = work_;
    const auto add = [&](Group* next) {
      if (next == nullptr) return false;
      if (next->looks == 0) work += next->work;
      few.push_back(next);
      return true;
    };
    if (work < most_work_) {
      for (const bool cad : {true, false}) add(best_estimated(cad));
    }
    for (bool more = true; more && few.size() < kAtOnce;) {
      more = false;
      for (const bool cad : {true, false}) {
        const bool room = few.size() < kAtOnce && work < most_work_;
        more = (room && add(next_to_look_at(cad, few, work, ratios))) || more;
      }
    }
    if (!few.empty() || !early_) return few;
    early_ = false;
    return next_few();
  }

  /// Whether looking at more of it is much work, which waits until others have been looked at.
  bool waits(const Group& group) const {
    return early_ && group.looks > 0 && group.work > kMostWork / 64;
  }

  Group* best_estimated(bool cad) {
    Group* best = nullptr;
    for (Group& group : groups_) {
      if (group.settled || group.looks == 0 || group.disaggregates() != cad) continue;
      if (group.expected >= looks_.most_of(group) || waits(group)) continue;
      if (best == nullptr || group.expected < best->expected) best = &group;
    }
    return best;
  }

  /// The most promising one with cad, or without; of a layout at first the one with the least
  /// bound. At the beginning those that take least work, as bounds say little of messages.
  /// @param work  with that of those that were chosen
  Group* next_to_look_at(bool cad, std::span<Group* const> chosen, double work,
                         const Ratios& ratios) {
    Group* best = nullptr;
    Group* cheapest = nullptr;
    double promise = std::numeric_limits<double>::infinity();
    const std::vector<Group*> leaders = leaders_of_unknown(ratios);
    for (Group& group : groups_) {
      if (group.settled || group.disaggregates() != cad || comes_later(group)) continue;
      if (group.expected >= looks_.most_of(group)) continue;
      if (waits(group) || std::ranges::find(chosen, &group) != chosen.end()) continue;
      // What a first sample takes is only reckoned, and may be a part of that.
      if (group.looks == 0 && work + group.work / 4 > most_work_) continue;
      const bool known = ratios.knows_layout_of(group);
      if (!known && leaders[group.family] != &group) continue;
      const double expected =
          group.looks == 0 ? promise_of(group) * ratios.of(group) : group.expected;
      if (expected < promise) promise = expected, best = &group;
      if (known || group.expected * ratios.of(group) > kHopeless * ratios.least()) continue;
      if (cheapest == nullptr || group.work < cheapest->work) cheapest = &group;
    }
    const bool cheap = cheapest != nullptr && work + cheapest->work < most_work_ / 8;
    return cheap ? cheapest : best;
  }

  /// By family of which nothing is known, the one with the least bound.
  std::vector<Group*> leaders_of_unknown(const Ratios& ratios) {
    std::vector<Group*> leaders;
    for (Group& group : groups_) {
      if (group.settled || comes_later(group) || ratios.knows_layout_of(group)) continue;
      leaders.resize(std::max(leaders.size(), group.family + 1));
      Group*& leader = leaders[group.family];
      const auto rank = [](const Group& one) { return std::pair(one.expected, one.work); };
      if (leader == nullptr || rank(group) < rank(*leader)) leader = &group;
    }
    return leaders;
  }

  /// Whether the same with more rows was not looked at yet.
  static bool comes_later(const Group& group) {
    if (!group.spare) return false;
    const Group& fuller = *(&group - 1);
    return fuller.looks == 0 && !fuller.settled;
  }

  /// The seconds that a group is expected to take; more where it is much work to know them: one
  /// that takes a quarter of all work has to promise a step that takes a fifth less.
  static double promise_of(const Group& group) {
    return group.expected * (1 + group.work / kMostWork);
  }

  /// Simulates those with cad, or without, that may be the best of their kind, so that the report
  /// can compare: those that are quickly simulated, looked at as the others were.
  void compare(bool cad) {
    const double overall = best_;
    most_work_ = work_ + kWorkToCompare;
    for (;;) {
      best_ = std::numeric_limits<double>::infinity();
      for (const Judged& judged : ranked_) {
        if (disaggregates(judged.candidate) == cad) best_ = std::min(best_, judged.seconds);
      }
      const Ratios ratios(groups_);
      const auto promise = [&](const Group& group) {
        return promise_of(group) * (group.looks == 0 ? ratios.of(group) : 1);
      };
      Group* next = nullptr;
      for (Group& group : groups_) {
        if (group.settled || group.disaggregates() != cad || comes_later(group)) continue;
        if (group.looks == 0 && promise(group) >= best_) continue;
        const double most = std::isinf(best_) ? kMostWork : kWorkToCompare;
        if (group.work >= most || group.expected >= looks_.most_of(group)) continue;
        if (next == nullptr || promise(group) < promise(*next)) next = &group;
      }
      if (next == nullptr || (work_ >= most_work_ && !std::isinf(best_))) break;
      work_ < most_work_ || next->looks == 0 ? look({&next, 1}) : looks_.at_all(*next);
    }
    std::vector<Group*> others;
    std::ranges::copy_if(long_, std::back_inserter(others),
                         [&](const Group* group) { return group->disaggregates() == cad; });
    if (std::isinf(best_)) judge_long_ones(others);
    best_ = std::min(overall, best_);
  }

  /// At larger parts of their steps than before; when there are none, at all of it.
  void look(std::span<Group* const> groups) {
    std::vector<std::optional<double>> work(groups.size());
    on_all_cores(groups.size(), [&](std::size_t i) { work[i] = looks_.at_part(*groups[i]); });
    for (std::size_t i = 0; i < groups.size(); ++i) {
      Group& group = *groups[i];
      if (work[i]) {
        work_ += *work[i];
        show(group.arrangement, group.settled
                                    ? "does not fit"
                                    : fmt::format("estimated {}", format_duration(group.expected)));
      } else if (group.expected < looks_.most_of(group)) {
        look_at_all(group);
      }
    }
  }

  void look_at_all(Group& group) {
    group.settled = true;  // if only for lack of time
    if (work_ + group.work < most_work_) return looks_.at_all(group);
    long_.push_back(&group);
  }

  /// Where there was no time for any, the one that takes least of those that no other is likely to
  /// beat, or of all that fit.
  void judge_long_ones(std::vector<Group*> groups) {
    const auto least = std::ranges::min_element(groups, {}, &Group::expected);
    if (least == groups.end()) return;
    const double most = (*least)->expected * kDoubtOfCheap;
    std::ranges::stable_sort(groups, {}, [&](const Group* group) {
      return std::pair(group->expected > most, group->work);
    });
    for (std::size_t i = 0; i < groups.size() && std::isinf(best_); ++i) looks_.at_all(*groups[i]);
  }

  /// Where a step is much work, the most promising one is worth more time than all searches get.
  /// Not with cad, of which parts promise too much.
  void judge_best_long_one() {
    Group* best = nullptr;
    for (Group* group : long_) {
      if (group->disaggregates() || group->work >= kMostWorkOfOne) continue;
      if (best == nullptr || group->expected < best->expected) best = group;
    }
    if (best != nullptr && best->expected < best_) looks_.at_all(*best);
  }

  /// Of the best one with cad, or without, the same layout without it, or with it: so the report
  /// tells what cad gains from what the layout does.
  void judge_twin_of_best(bool cad) {
    const Judged* best = nullptr;
    for (const Judged& one : ranked_) {
      if (disaggregates(one.candidate) != cad) continue;
      if (best == nullptr || one.seconds < best->seconds) best = &one;
    }
    if (best == nullptr || best->work >= kMostWorkOfOne) return;
    const Candidate of = best->candidate;
    const auto is_twin = [&](const Group& group) {
      return !group.settled && group.disaggregates() != cad && are_twins(group.arrangement, of);
    };
    const auto twin = std::ranges::find_if(groups_, is_twin);
    if (twin != groups_.end()) looks_.at_all(*twin);
  }

  /// Whether two differ only in that one disaggregates attention.
  static bool are_twins(const Candidate& a, const Candidate& b) {
    const auto layout = [](const Candidate& one) {
      const config::Parallel& p = one.parallel;
      const config::Attention& attention = one.attention;
      return std::tuple(p.data, p.pipeline, p.chunks, p.tensor, p.context, one.microbatch,
                        one.longest, attention.shares(), attention.overlap, attention.servers);
    };
    return layout(a) == layout(b);
  }

  /// Candidates that need least first, until one fits.
  void visit_by_memory() {
    std::vector<Group*> all;
    for (Group& group : groups_) {
      for (Judged& variant : group.variants) {
        variant.outcome = Outcome::bound;
        variant.expected = 0;
        room_.measure(variant);
      }
      all.push_back(&group);
    }
    std::ranges::stable_sort(all, {}, [](const Group* group) {
      return std::ranges::min(group->variants, {}, &Judged::bytes).bytes;
    });
    int looks = 0;
    for (Group* group : all) {
      if (ranked_.empty() && looks++ < kMostByMemory) looks_.at_all(*group);
    }
  }

  std::int64_t seen() const {
    const auto looked = [](const Group& group) { return group.looks > 0; };
    return std::max<std::int64_t>(1, std::ranges::count_if(groups_, looked));
  }

  void show(const Candidate& candidate, const std::string& found) {
    const std::string best =
        std::isinf(best_) ? "" : fmt::format("; best {}", format_duration(best_));
    progress_->show(seen(), fmt::format("{}, {}: {}{}", layout_text(candidate),
                                        placement_text(candidate), found, best));
  }

  /// What became of a group that was not simulated: its most promising variant.
  Judged unsimulated(const Group& group) const {
    const auto hope = [](const Judged& judged) {  // without an estimate none had to be looked at
      return std::tuple(judged.outcome == Outcome::too_large, judged.expected == 0, judged.expected,
                        judged.bound);
    };
    Judged most = *std::ranges::min_element(group.variants, {}, hope);
    if (most.outcome == Outcome::too_large) return most;
    if (most.expected > 0) {
      most.outcome = most.expected < best_ * kDoubt ? Outcome::late : Outcome::slower;
    } else {
      most.outcome = most.bound < best_ ? Outcome::untried : Outcome::bound;
    }
    return most;
  }

  SearchReport report() const {
    SearchReport found{given_,         machine_,        room_.bytes(),
                       groups_.size(), steps_.tokens(), ranked_,
                       cad_,           too_large(),     {}};
    for (const Group& group : groups_) {
      const std::size_t plans = group.variants.front().plans;
      const bool simulated = std::ranges::find(ranked_, plans, &Judged::plans) != ranked_.end();
      if (!simulated) found.others.push_back(unsimulated(group));
    }
    std::ranges::stable_sort(found.others, {}, &Judged::expected);
    return found;
  }

  [[noreturn]] void refuse() const {
    const std::vector<Judged> large = too_large();
    const Judged& least = *std::ranges::min_element(large, {}, need_of_run);
    const bool weights_alone =
        exec::least_memory(least.candidate.of(given_)).parameters > room_.bytes();
    const char* instead = weights_alone
                              ? "more ranks: weights, gradients and optimizer alone do not fit"
                              : "more ranks, a smaller batch.microbatch, or keys set to auto";
    const auto bytes = [](std::int64_t value) { return format_bytes(static_cast<double>(value)); };
    const std::string found =
        given_.run.memory > 0 ? fmt::format("run.memory: found {}", bytes(room_.bytes()))
                              : fmt::format("cluster.machine: found {} with {} of memory per rank",
                                            machine_.name, bytes(room_.bytes()));
    fail(ExitCode::usage,
         "{}, but all {} layouts and placements need more or may in a long run; the "
         "least is {} (most of it: {}): {}, {}, run.recompute {}, parallel.shard {}; valid: {}",
         found, groups_.size(), bytes(need_of_run(least)), least.fullest,
         layout_text(least.candidate), placement_text(least.candidate),
         config::word_of(least.candidate.recompute),
         config::word_of(least.candidate.parallel.shard), instead);
  }

  const config::Experiment& given_;
  const config::Machine& machine_;
  const data::Corpus& corpus_;
  TypicalSteps steps_;
  Room room_;
  std::vector<Group> groups_;
  std::optional<Progress> progress_;
  Looks looks_{given_, machine_, steps_, room_,
               [this](const Candidate& one, const std::string& found) { show(one, found); }};
  std::vector<Judged>& ranked_ = looks_.simulated;
  double& best_ = looks_.best;
  double& work_ = looks_.work;
  std::vector<Group*> long_;  ///< that would take more than what is left of the work limit
  std::optional<StepRatio> cad_;
  double most_work_ = 0;  ///< set for each round
  bool early_ = true;     ///< first half of that, as long as there is anything that does not wait
};

}  // namespace

Choice search_layout(const config::Experiment& experiment, const data::Corpus& corpus,
                     const config::Machine& machine, bool progress) {
  Choice choice{experiment, "", {}, 0, {}, {}};
  if (experiment.attention.placement == config::PlacementKind::automatic) {
    choice = Search(experiment, corpus, machine, progress).run();
  }
  const Decisions decisions =
      decide(choice.experiment, data::Packer(corpus, choice.experiment), machine);
  choice.experiment.attention.overlap = decisions.overlap;
  config::Parallel& parallel = choice.experiment.parallel;
  if (parallel.pipeline > 1) {  // so that those who read the run need not resolve it
    parallel.schedule = choice.experiment.pipeline_schedule();
  }
  choice.decisions = decisions.lines;
  return choice;
}

}  // namespace cadenza::app
