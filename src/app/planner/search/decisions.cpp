// SPDX-License-Identifier: Apache-2.0
#include "app/planner/search/search.hpp"

#include <fmt/format.h>

#include <optional>

#include "app/planner/predict/forecast.hpp"
#include "app/planner/predict/sample.hpp"
#include "app/planner/search/candidates.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/simulate/least_time.hpp"

namespace cadenza::app {
namespace {

using config::Overlap;

/// Of a step this much is looked at, at least: of one microbatch alone, ranks that exchange nothing
/// would seem to wait for each other, which ping-pong does not cure.
constexpr SampleSize kSample = {256, 4};

std::string_view text_of(Overlap overlap) {
  return overlap == Overlap::ping_pong ? "ping_pong" : "none";
}

/// What planners know of an experiment.
config::Experiment as_planned(config::Experiment e, Overlap overlap) {
  e.attention.overlap = overlap;
  e.cluster = e.cluster.even();
  return e;
}

/// An experiment with one overlap: the plans of a part of its first step.
class Trial {
 public:
  Trial(const config::Experiment& experiment, const data::Batch& batch,
        const config::Machine& machine)
      : e_(experiment),
        machine_(machine),
        least_(batch, e_, machine),
        sample_(sample_of(e_, batch, least_.attention(), kSample)),
        tick_plans_(program::plan_ticks(sample_.experiment, sample_.batch, machine)) {}

  double step_seconds() {
    return estimate(sample_, tick_plans_, least_.seconds(e_), machine_).seconds;
  }
  std::int64_t bytes() const {
    exec::MemoryEstimate memory = exec::least_memory(e_);
    memory += memory_of_plans(sample_, tick_plans_);
    return memory.total();
  }
  /// Empty where no tolerance was tried.
  std::string tolerance() const { return plan::describe(tick_plans_.front().forward.trials); }

 private:
  config::Experiment e_;
  const config::Machine& machine_;
  simulate::LeastTime least_;
  Sample sample_;
  std::vector<program::TickPlans> tick_plans_;
};

/// Why ping-pong is out of the question with cad; empty where it is not.
std::string obstacle(const config::Experiment& e) {
  const program::Layout layout(e);
  if (layout.pool_size() == 1) return "attention stays with its tokens";
  if (!e.attention.mask().is_causal() || e.attention.sparse_rule().block > 0) {
    return fmt::format("ping_pong does not go with attention.kind {}",
                       config::word_of(e.attention.kind));
  }
  return "";
}

class Overlaps {
 public:
  Overlaps(const config::Experiment& experiment, const data::Batch& batch,
           const config::Machine& machine)
      : e_(experiment), batch_(batch), machine_(machine) {}

  Trial& trial(Overlap overlap) {
    std::optional<Trial>& mine = trials_[overlap == Overlap::none ? 0 : 1];
    if (!mine) mine.emplace(as_planned(e_, overlap), batch_, machine_);
    return *mine;
  }

  Overlap choose(std::string& reason) {
    reason = obstacle(e_);
    if (!reason.empty()) return Overlap::none;
    const std::int64_t limit = memory_of_rank(e_, machine_);
    if (limit > 0 && trial(Overlap::ping_pong).bytes() > limit &&
        trial(Overlap::none).bytes() <= limit) {
      reason = "ping_pong does not fit into memory";
      return Overlap::none;
    }
    const double none = trial(Overlap::none).step_seconds();
    const double halves = trial(Overlap::ping_pong).step_seconds();
    const bool faster = halves <= (1 - kLeastGain) * none;
    reason = fmt::format("predicted {} a step, {} {}; {}", format_duration(faster ? halves : none),
                         faster ? "none" : "ping_pong", format_duration(faster ? none : halves),
                         machine_text(e_.cluster, machine_));
    return faster ? Overlap::ping_pong : Overlap::none;
  }

 private:
  const config::Experiment& e_;
  const data::Batch& batch_;
  const config::Machine& machine_;
  std::optional<Trial> trials_[2];
};

}  // namespace

Decisions decide(const config::Experiment& experiment, const data::Packer& packer,
                 const config::Machine& machine) {
  const config::Attention& attention = experiment.attention;
  const bool decides = attention.overlap == Overlap::automatic;
  Decisions decisions{decides ? Overlap::none : attention.overlap, {}};
  const bool tolerates = !attention.tolerance;
  if (!config::disaggregates(attention.placement) || (!decides && !tolerates)) {
    return decisions;
  }
  const data::Batch batch = packer.batch(0);
  Overlaps overlaps(experiment, batch, machine);
  if (decides) {
    std::string reason;
    decisions.overlap = overlaps.choose(reason);
    decisions.lines.push_back(
        fmt::format("overlap: {} (auto: {})", text_of(decisions.overlap), reason));
  }
  if (tolerates) {
    decisions.lines.push_back(fmt::format("tolerance, first tick: {}; {}",
                                          overlaps.trial(decisions.overlap).tolerance(),
                                          machine_text(experiment.cluster, machine)));
  }
  return decisions;
}

}  // namespace cadenza::app
