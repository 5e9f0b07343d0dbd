// SPDX-License-Identifier: Apache-2.0
#include "app/planner/search/finals.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <functional>
#include <iterator>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "app/planner/all_cores.hpp"
#include "app/planner/predict/steps.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/cost/flops.hpp"

namespace cadenza::app {
namespace {

constexpr std::size_t kOfAKind = 32;  ///< finalists with cad, and without
constexpr double kNear = 1.5;         ///< times the best of its kind in one step: a finalist
constexpr double kSure = 0.014;       ///< half of the interval of a ratio
constexpr std::size_t kMostSteps = 128;
constexpr std::size_t kRound = 8;   ///< steps from look to look: who looks often errs often
constexpr double kWorthIt = 1.002;  ///< times: what cad has to save
constexpr double kSurely = 1.5;     ///< halves of the interval: who is given up is slower

struct Finalist {
  Judged judged;
  std::optional<Steps> steps;
  std::vector<double> seconds;  ///< by step
  StepParts parts;              ///< sums
  double imbalance = 0;         ///< sum
  double model_flops = 0;       ///< sum
  bool given_up = false;
  bool too_large() const { return judged.outcome == Outcome::too_large; }
  bool out() const { return given_up || too_large(); }
  bool cad() const { return disaggregates(judged.candidate); }
  double total(std::size_t of_steps) const {
    return std::accumulate(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(of_steps),
                           0.0);
  }
  double mean() const { return total(seconds.size()) / static_cast<double>(seconds.size()); }
};

/// What a step of a finalist took.
struct StepTaken {
  double seconds = 0;
  StepParts parts;
  double imbalance = 0;
  double model_flops = 0;
  std::int64_t bytes = 0;  ///< of the fullest rank
  std::string fullest;     ///< what fills it most
};

class Contest {
 public:
  Contest(const config::Experiment& given, const std::vector<Judged>& ranked,
          const std::vector<Judged>& leaner, const data::Corpus& corpus,
          const config::Machine& machine, const Room& room,
          const std::function<void(const std::string&)>& show)
      : given_(given),
        corpus_(corpus),
        machine_(machine),
        room_(room),
        show_(show),
        reserve_(ranked),
        leaner_(leaner) {
    for (const bool cad : {true, false}) enter(cad);
  }

  Finals run() {
    for (std::size_t step = 0; step < kMostSteps; ++step) {
      if (work_ + work_of_step() > kWorkToDecide) break;
      show_(fmt::format("the best {}: step {}",
                        std::ranges::count_if(all_, std::not_fn(&Finalist::out)), step));
      for (auto late = behind(step); !late.empty(); late = behind(step)) advance(late);
      if ((step + 1) % kRound != 0) continue;
      give_up_slower();
      save_work(step + 1);
      if (known(step + 1)) break;
    }
    return result();
  }

 private:
  /// The next best of a kind, from the reserve, while there is room for them.
  void enter(bool cad) {
    for (auto next = reserve_.begin(); next != reserve_.end();) {
      if (disaggregates(next->candidate) != cad || !has_room_for(*next)) {
        ++next;
        continue;
      }
      all_.emplace_back().judged = *next;
      all_.back().judged.outcome = Outcome::simulated;
      next = reserve_.erase(next);
    }
  }

  /// One of a kind there always is. Others enter, of equal plans one, as long as a first round of
  /// the kind takes no more than a quarter of the work, and there is work left for the steps that
  /// they have to make up.
  bool has_room_for(const Judged& next) const {
    std::size_t entered = 0, steps = kRound;
    double best = next.seconds, work = next.work;
    for (const Finalist& one : all_) {
      steps = std::max(steps, one.seconds.size());
      if (one.too_large() || one.cad() != disaggregates(next.candidate)) continue;
      if (one.judged.plans == next.plans) return false;
      best = std::min(best, one.judged.seconds);
      if (!one.out()) work += one.judged.work;
      ++entered;
    }
    if (entered == 0) return true;
    return entered < kOfAKind && next.seconds <= kNear * best &&
           static_cast<double>(kRound) * work <= kWorkToDecide / 4 &&
           work_ + static_cast<double>(steps) * next.work <= kWorkToDecide;
  }

  double work_of_step() const {
    double work = 0;
    for (const Finalist& one : all_) work += one.out() ? 0 : one.judged.work;
    return work;
  }

  /// Those that have not done this step.
  std::vector<Finalist*> behind(std::size_t step) {
    std::vector<Finalist*> late;
    for (Finalist& one : all_) {
      if (!one.out() && one.seconds.size() <= step) late.push_back(&one);
    }
    return late;
  }

  /// Each by a step, on all cores.
  void advance(std::span<Finalist* const> finalists) {
    std::vector<StepTaken> steps(finalists.size());
    on_all_cores(finalists.size(), [&](std::size_t i) { steps[i] = next_step(*finalists[i]); });
    for (std::size_t i = 0; i < finalists.size(); ++i) note(*finalists[i], steps[i]);
  }

  StepTaken next_step(Finalist& one) const {
    if (!one.steps) {
      const config::Experiment e = one.judged.candidate.of(given_);
      one.steps.emplace(e, data::Packer(corpus_, e), machine_);
    }
    const SimulatedStep step = one.steps->run(std::ssize(one.seconds));
    const config::Experiment& e = one.steps->experiment();
    return {step.result.seconds,
            parts_of(step.result),
            imbalance_of(e, step.result),
            cost::model_flops(e.model, e.attention, step.batch.lengths()),
            step.peak_bytes(),
            step.memory[step.fullest()].largest()};
  }

  void note(Finalist& one, const StepTaken& step) {
    work_ += one.judged.work;
    const std::int64_t grown = step.bytes - one.judged.bytes;
    one.judged.bytes = step.bytes;
    one.judged.fullest = step.fullest;
    one.judged.steps = static_cast<int>(one.seconds.size()) + 1;
    if (!room_.has(one.judged)) return replace(one, grown);
    one.seconds.push_back(step.seconds);
    one.parts = one.parts + step.parts;
    one.imbalance += step.imbalance;
    one.model_flops += step.model_flops;
  }

  /// Others of its kind take the place of one that is too large: those that lost to it, those with
  /// its plans that need less, and the reserve.
  /// @param grown  bytes, since it was last known to fit
  void replace(Finalist& large, std::int64_t grown) {
    const bool was_best = best_of(large.cad()) == &large;
    large.judged.outcome = Outcome::too_large;
    large.judged.fullest += fmt::format(", in step {}", large.seconds.size());
    for (Finalist& other : all_) {
      if (was_best && other.cad() == large.cad()) other.given_up = false;
    }
    std::ranges::copy_if(leaner_, std::back_inserter(reserve_), [&](Judged one) {
      one.bytes += grown;
      return one.plans == large.judged.plans && room_.has(one);
    });
    std::erase_if(leaner_, [&](const Judged& one) { return one.plans == large.judged.plans; });
    std::ranges::stable_sort(reserve_, {}, &Judged::seconds);
    enter(large.cad());
  }

  /// Least time over the steps; null where none of the kind is left.
  Finalist* best_of(bool cad) {
    Finalist* best = nullptr;
    for (Finalist& one : all_) {
      if (one.out() || one.cad() != cad || one.seconds.empty()) continue;
      if (best == nullptr || one.mean() < best->mean()) best = &one;
    }
    return best;
  }

  /// Those that still compete with the best of their kind, and how much longer they take.
  std::vector<std::pair<StepRatio, Finalist*>> rivals() {
    std::vector<std::pair<StepRatio, Finalist*>> found;
    for (const bool cad : {true, false}) {
      const Finalist* best = best_of(cad);
      for (Finalist& one : all_) {
        if (one.out() || &one == best || one.cad() != cad) continue;
        found.emplace_back(ratio_of(one.seconds, best->seconds), &one);
      }
    }
    return found;
  }

  /// Who is slower for sure.
  void give_up_slower() {
    for (const auto& [ratio, one] : rivals()) {
      const bool sure = one->seconds.size() >= 2 * kRound &&
                        ratio.value - kSurely * (ratio.value - ratio.low) > 1;
      if (sure) one->given_up = true;
    }
  }

  /// Each time that the steps have doubled, the slowest are given up until as many steps again take
  /// no more than half of the work that is left.
  void save_work(std::size_t steps) {
    if (!std::has_single_bit(steps)) return;
    std::vector<std::pair<StepRatio, Finalist*>> all = rivals();
    std::ranges::stable_sort(all, {}, [](const auto& rival) { return -rival.first.value; });
    for (const auto& [ratio, one] : all) {
      const double again = static_cast<double>(steps) * work_of_step();
      if (again <= (kWorkToDecide - work_) / 2) return;
      one->given_up = true;
    }
  }

  /// How much longer the best without cad takes, and every rival than the best of its kind.
  bool known(std::size_t steps) {
    const Finalist *with = best_of(true), *without = best_of(false);
    if (with == nullptr || without == nullptr) return steps >= kEnoughSteps;
    std::vector<std::pair<StepRatio, Finalist*>> all = rivals();
    all.emplace_back(ratio_of(without->seconds, with->seconds), nullptr);
    return std::ranges::all_of(all, [](const auto& rival) {
      const StepRatio& ratio = rival.first;
      return ratio.steps >= kEnoughSteps && ratio.high - ratio.value <= kSure;
    });
  }

  Finals result() {
    Finals found;
    Finalist *with = best_of(true), *without = best_of(false);
    if (with != nullptr && without != nullptr) {
      found.cad = ratio_of(without->seconds, with->seconds);
    }
    for (const Finalist& one : all_) {
      if (one.too_large()) found.too_large.push_back(one.judged);
    }
    if (with == nullptr && without == nullptr) return found;
    const bool cad_wins =
        without == nullptr || (with != nullptr && with->mean() <= without->mean());
    const Finalist& first = cad_wins ? *with : *without;
    for (const Finalist& one : all_) {
      if (!one.too_large() && !one.seconds.empty()) {
        const Finalist& rival = one.cad() ? *with : *without;
        found.ranked.push_back(mean_of(one, rival, mean_of(rival, first, first.mean()).seconds));
      }
    }
    // Where cad has nothing to move it is as fast as what keeps attention in place, which is
    // simpler.
    std::ranges::stable_sort(found.ranked, {}, [](const Judged& one) {
      return one.seconds * (disaggregates(one.candidate) ? kWorthIt : 1.0);
    });
    for (Judged one : reserve_) {  // of whom one step says too little to stand before others
      if (one.outcome != Outcome::simulated) continue;
      rescale(one, one.seconds * first.mean() / first.judged.seconds);
      found.ranked.push_back(one);
    }
    const double flops =
        first.model_flops / static_cast<double>(first.seconds.size()) / first.judged.model_flops;
    for (Judged& one : found.ranked) one.model_flops *= flops;
    return found;
  }

  /// Over the steps that it shares with the best of its kind, from which it then differs by least
  /// chance. Who was given up is no faster.
  /// @param rivals  mean seconds of this one, `rival`
  static Judged mean_of(const Finalist& one, const Finalist& rival, double rivals) {
    const std::size_t shared = std::min(one.seconds.size(), rival.seconds.size());
    const auto steps = static_cast<double>(one.seconds.size());
    const double ratio = one.total(shared) / rival.total(shared);
    Judged judged = one.judged;
    judged.seconds = one.mean();
    judged.steps = static_cast<int>(one.seconds.size());
    judged.half = half_of_mean(one.seconds);
    judged.parts = 1 / steps * one.parts;
    judged.attention_imbalance = one.imbalance / steps;
    rescale(judged, rivals * (one.given_up ? std::max(1.0, ratio) : ratio));
    return judged;
  }

  /// The same steps take so many seconds in the mean.
  static void rescale(Judged& judged, double seconds) {
    judged.parts = seconds / judged.seconds * judged.parts;
    judged.half *= seconds / judged.seconds;
    judged.seconds = seconds;
  }

  const config::Experiment& given_;
  const data::Corpus& corpus_;
  const config::Machine& machine_;
  const Room& room_;
  const std::function<void(const std::string&)>& show_;
  std::deque<Finalist> all_;     ///< whose members stay where they are
  std::vector<Judged> reserve_;  ///< who is no finalist, best first
  std::vector<Judged> leaner_;
  double work_ = 0;
};

}  // namespace

double student(double degrees) {
  constexpr double z = 1.959964;
  const double z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;
  return z + (z3 + z) / (4 * degrees) + (5 * z5 + 16 * z3 + 3 * z) / (96 * degrees * degrees) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * std::pow(degrees, 3));
}

double half_of_mean(std::span<const double> seconds) {
  const std::vector<double> ones(seconds.size(), 1.0);
  const StepRatio mean = ratio_of(seconds, ones);
  return std::isinf(mean.high) ? 0 : mean.high - mean.value;
}

StepRatio ratio_of(std::span<const double> longer, std::span<const double> shorter) {
  const std::size_t steps = std::min(longer.size(), shorter.size());
  const auto count = static_cast<double>(steps);
  double above = 0, below = 0;
  for (std::size_t i = 0; i < steps; ++i) above += longer[i], below += shorter[i];
  StepRatio ratio{.value = above / below, .steps = static_cast<int>(steps)};
  if (steps < 4) return ratio;
  double squares = 0;
  for (std::size_t i = 0; i < steps; ++i) {
    squares += std::pow(longer[i] - ratio.value * shorter[i], 2);
  }
  const double error = std::sqrt(squares / (count - 1) / count) / (below / count);
  const double half = student(count - 1) * error;
  ratio.low = ratio.value - half;
  ratio.high = ratio.value + half;
  return ratio;
}

Finals compare_over_steps(const config::Experiment& given, const std::vector<Judged>& ranked,
                          const std::vector<Judged>& leaner, const data::Corpus& corpus,
                          const config::Machine& machine, const Room& room,
                          const std::function<void(const std::string&)>& show) {
  return Contest(given, ranked, leaner, corpus, machine, room, show).run();
}

}  // namespace cadenza::app
