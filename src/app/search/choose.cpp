// SPDX-License-Identifier: Apache-2.0
#include "choose.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "app/plan/forecast.hpp"
#include "app/runtime/progress.hpp"
#include "app/train/step_report.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/units.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/simulate/least_time.hpp"
#include "choose_table.hpp"

namespace cadenza::app {
namespace {

/// A layout with a placement: one set of plans for all of its variants.
struct Group {
  Candidate arrangement;
  std::vector<Judged> variants;  ///< by bound
  double bound() const { return variants.front().bound; }
  bool disaggregates() const {
    return arrangement.attention.placement == config::PlacementKind::cad;
  }
};

/// The larger of the first and the last stage, whatever the plans are.
exec::MemoryEstimate least_memory(const config::Experiment& e) {
  const program::StepShape outline(e);
  const Rank last = outline.layout.rank({0, outline.layout.pipeline() - 1, 0, 0});
  return std::max(exec::least_memory(e, outline, 0), exec::least_memory(e, outline, last),
                  [](const auto& a, const auto& b) { return a.total() < b.total(); });
}

double imbalance_of(const config::Experiment& e, const simulate::Result& step) {
  std::vector<RankStep> ranks(step.ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    ranks[i].attention_ns = static_cast<std::int64_t>(step.ranks[i].attention * 1e9);
  }
  return attention_imbalance(ranks, attention_servers(e));
}

class Search {
 public:
  Search(const config::Experiment& given, const data::Packer& packer,
         const config::Machine& machine, bool progress)
      : given_(given),
        machine_(machine),
        batch_(packer.batch(0)),
        limit_(given.run.memory > 0 ? given.run.memory : machine.memory),
        most_(most_on(given.ranks())),
        progress_(progress, most_, "candidate", 0, stderr) {
    add_groups();
  }

  Choice run() {
    std::ranges::stable_sort(groups_, {}, &Group::bound);
    for (Group& group : groups_) visit(group);
    if (ranked_.empty()) visit_by_memory();
    progress_.finish();
    if (ranked_.empty()) refuse();
    std::ranges::stable_sort(ranked_, {}, &Judged::seconds);
    const SearchReport report{given_,     machine_, limit_,   groups_.size(),
                              simulated_, slower_,  untried_, static_cast<double>(batch_.tokens()),
                              ranked_,    large_};
    return {ranked_.front().candidate.of(given_), describe(report), simulated_};
  }

 private:
  static int most_on(std::int64_t ranks) {
    constexpr std::int64_t kRanks = 256;  // on which all are
    return static_cast<int>(std::clamp<std::int64_t>(kMostSimulated * kRanks / ranks,
                                                     kFewestSimulated, kMostSimulated));
  }

  void add_groups() {
    for (const Candidate& arrangement : arrangements(given_)) {
      Group group{arrangement, {}};
      for (const Candidate& variant : variants(given_, arrangement)) {
        group.variants.push_back({variant, bound_of(variant.of(given_)), 0, "", 0, 1, {}});
      }
      std::ranges::stable_sort(group.variants, {}, &Judged::bound);
      groups_.push_back(std::move(group));
    }
    if (!groups_.empty()) return;
    fail(ExitCode::usage,
         "attention.placement: found auto, but no layout of {} trainers fits this model and batch; "
         "valid: fewer trainers, batch.tokens with more microbatches, or parallel.pipeline, tensor "
         "and context left open",
         given_.parallel.trainers());
  }

  double bound_of(const config::Experiment& e) {
    if (!least_time_) {
      costs_.emplace(machine_, e, program::Layout(e));
      least_time_.emplace(batch_, *costs_);
    }
    return least_time_->seconds(e);
  }

  double& best(const Group& group) { return best_[group.disaggregates() ? 1 : 0]; }

  bool fits(const Judged& judged) const { return limit_ == 0 || judged.bytes <= limit_; }

  void visit(Group& group) {
    if (group.bound() >= best(group)) {
      ++slower_;
    } else if (tried_ >= most_) {
      ++untried_;
    } else {
      judge(group);
    }
  }

  /// Candidates that need least first, until one fits.
  void visit_by_memory() {
    const auto least = [](const Group& group) {
      return std::ranges::min(group.variants, {}, &Judged::bytes).bytes;
    };
    for (Group& group : groups_) {
      for (Judged& variant : group.variants) measure_least(variant);
    }
    std::ranges::stable_sort(groups_, {}, least);
    tried_ = 0;
    large_.clear();
    for (Group& group : groups_) {
      if (tried_ < most_ && ranked_.empty()) judge(group);
    }
  }

  void measure_least(Judged& judged) const {
    const exec::MemoryEstimate memory = least_memory(judged.candidate.of(given_));
    judged.bytes = memory.total();
    judged.fullest = memory.largest();
  }

  /// Of the variants with and without optimizer shards the first that fits: more recomputation is
  /// only slower.
  void judge(Group& group) {
    std::vector<program::TickPlans> ticks;
    std::array<bool, 2> done{};
    for (Judged& variant : group.variants) {
      bool& mine = done[variant.candidate.parallel.shard == config::Shard::optimizer ? 1 : 0];
      if (mine || variant.bound >= best(group)) continue;
      measure_least(variant);
      mine = fits(variant) && simulate(variant, ticks);
      if (!mine) {
        large_.push_back(variant);
        continue;
      }
      best(group) = std::min(best(group), variant.seconds);
      ranked_.push_back(variant);
    }
  }

  /// @param ticks  of the group; made for its first variant
  /// @return whether it fits
  bool simulate(Judged& judged, std::vector<program::TickPlans>& ticks) {
    const config::Experiment e = judged.candidate.of(given_);
    const program::StepShape outline(e);
    const simulate::Costs costs(machine_, e, outline.layout);
    if (ticks.empty()) {
      ++tried_;
      ticks = program::plan_ticks(e, batch_);
    }
    Forecast step =
        prepare(e, outline, std::move(ticks), !tensor_ranks_alike(e, outline.layout, costs));
    judged.bytes = step.peak_bytes();
    judged.fullest = step.memory[step.fullest()].largest();
    if (fits(judged)) {
      advance(step, e, outline, costs, batch_.step);
      ++simulated_;
      judged.seconds = step.result.seconds;
      judged.parts = parts_of(step.result);
      judged.attention_imbalance = imbalance_of(e, step.result);
      show(judged);
    }
    ticks = std::move(step.ticks);
    return fits(judged);
  }

  void show(const Judged& judged) {
    const double least = std::min({best_[0], best_[1], judged.seconds});
    progress_.show(std::min(simulated_, most_),
                   fmt::format("{}, {}: {}; best {}", layout_text(judged.candidate.parallel),
                               placement_text(judged.candidate.attention),
                               format_duration(judged.seconds), format_duration(least)));
  }

  [[noreturn]] void refuse() const {
    const Judged& least = *std::ranges::min_element(large_, {}, &Judged::bytes);
    const std::string found =
        given_.run.memory > 0
            ? fmt::format("run.memory: found {}", format_bytes(static_cast<double>(limit_)))
            : fmt::format("cluster.machine: found {} with {} a rank", machine_.name,
                          format_bytes(static_cast<double>(limit_)));
    fail(ExitCode::usage,
         "{}, but all {} layouts and placements need more; the least is {} (most of it: {}): {}, "
         "{}, run.recompute {}, parallel.shard {}; valid: more ranks, a smaller batch.microbatch, "
         "or keys left open",
         found, groups_.size(), format_bytes(static_cast<double>(least.bytes)), least.fullest,
         layout_text(least.candidate.parallel), placement_text(least.candidate.attention),
         config::word_of(least.candidate.recompute),
         config::word_of(least.candidate.parallel.shard));
  }

  const config::Experiment& given_;
  const config::Machine& machine_;
  data::Batch batch_;
  std::int64_t limit_;
  int most_;  ///< groups that are planned
  Progress progress_;
  std::optional<simulate::Costs> costs_;
  std::optional<simulate::LeastTime> least_time_;
  std::vector<Group> groups_;
  std::vector<Judged> ranked_;
  std::vector<Judged> large_;
  std::array<double, 2> best_ = {std::numeric_limits<double>::infinity(),
                                 std::numeric_limits<double>::infinity()};  ///< without cad, with
  int tried_ = 0;
  int simulated_ = 0;
  std::size_t slower_ = 0;
  std::size_t untried_ = 0;
};

}  // namespace

Choice choose_layout(const config::Experiment& experiment, const data::Packer& packer,
                     const config::Machine& machine, bool progress) {
  if (experiment.attention.placement != config::PlacementKind::automatic) return {experiment, ""};
  return Search(experiment, packer, machine, progress).run();
}

}  // namespace cadenza::app
