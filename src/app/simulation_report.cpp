// SPDX-License-Identifier: Apache-2.0
#include "cadenza/app/simulation_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cadenza/base/units.hpp"

namespace cadenza::app {
namespace {

using simulate::RankTimes;

constexpr std::size_t kShown = 8;  ///< ranks out of memory

struct Class {
  const char* name;
  double RankTimes::*seconds;
};
constexpr std::array<Class, 6> kClasses = {{{"attention", &RankTimes::attention},
                                            {"dense", &RankTimes::dense},
                                            {"copies", &RankTimes::copies},
                                            {"optimizer", &RankTimes::optimizer},
                                            {"waiting", &RankTimes::waiting},
                                            {"collectives", &RankTimes::collectives}}};
constexpr std::size_t kComputing = 4;  ///< the first classes are a rank's own work

struct Spread {
  double mean = 0;
  double most = 0;
  std::size_t rank = 0;  ///< with most
};

template <typename Seconds>
Spread spread(std::size_t ranks, Seconds seconds) {
  Spread result;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const double value = seconds(rank);
    result.mean += value / static_cast<double>(ranks);
    if (value <= result.most) continue;
    result.most = value;
    result.rank = rank;
  }
  return result;
}

/// A share of a step; sums leave what is no time at all.
std::string duration(double seconds) {
  return format_duration(seconds < 1e-9 ? 0.0 : seconds);
}

double percent(double part, double whole) {
  return whole > 0 ? 100.0 * part / whole : 0.0;
}

}  // namespace

void TimeTable::add(const simulate::Result& step) {
  ranks_.resize(step.ranks.size());
  idle_.resize(step.ranks.size(), 0.0);
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const RankTimes& times = step.ranks[rank];
    for (const Class& c : kClasses) ranks_[rank].*c.seconds += times.*c.seconds;
    idle_[rank] += shares_of(times, step.seconds).idle * step.seconds;
  }
  seconds_ += step.seconds;
  ++steps_;
}

std::string TimeTable::text() const {
  std::string text = fmt::format("{:<12} {:>20} {:>26}\n", "of a step", "mean of ranks", "most");
  const auto add = [&](const char* name, const Spread& s) {
    text += fmt::format("{:<12} {:>11} {:>6.1f} % {:>11} {:>6.1f} %", name,
                        duration(s.mean / steps_), percent(s.mean, seconds_),
                        duration(s.most / steps_), percent(s.most, seconds_));
    text += s.most > 0 ? fmt::format("  rank {}\n", s.rank) : "\n";
  };
  for (const Class& c : kClasses) {
    add(c.name, spread(ranks_.size(), [&](std::size_t rank) { return ranks_[rank].*c.seconds; }));
  }
  add("idle", spread(idle_.size(), [&](std::size_t rank) { return idle_[rank]; }));
  return text;
}

std::string TimeTable::slowest() const {
  const Spread busy = spread(ranks_.size(), [&](std::size_t rank) { return ranks_[rank].busy(); });
  const Class* reason = kClasses.data();
  double excess = -1;
  for (std::size_t c = 0; c < kComputing; ++c) {
    const auto seconds = kClasses[c].seconds;
    const Spread all =
        spread(ranks_.size(), [&](std::size_t rank) { return ranks_[rank].*seconds; });
    const double more = ranks_[busy.rank].*seconds - all.mean;
    if (more <= excess) continue;
    excess = more;
    reason = &kClasses[c];
  }
  const std::string first = fmt::format("slowest: rank {} computes {} of a step", busy.rank,
                                        format_duration(busy.most / steps_));
  if (busy.most <= busy.mean * 1.001) return first + ", as all do";
  return fmt::format("{}, {:.1f} % more than the mean; most of the difference is {} (+{})", first,
                     percent(busy.most - busy.mean, busy.mean), reason->name,
                     format_duration(excess / steps_));
}

std::string describe(const SimulationSummary& s) {
  const auto [least, most] = std::ranges::minmax(s.steps);
  std::string text = format_duration(s.seconds);
  if (s.steps.size() > 1) {
    text += fmt::format(" ({} to {} over {} steps)", format_duration(least), format_duration(most),
                        s.steps.size());
  }
  text = fmt::format(
      "step time   {}, no less than {} with all computation even and nothing exposed: {:.1f} % is "
      "left to win\n",
      text, format_duration(s.lower_bound_seconds),
      percent(s.seconds - s.lower_bound_seconds, s.seconds));
  text += fmt::format("throughput  {} tokens/s", format_count(s.tokens_per_second()));
  if (s.model_flops_utilization > 0) {
    text += fmt::format(", MFU {:.1f} %", 100.0 * s.model_flops_utilization);
  }
  return text + fmt::format("; attention imbalance {:.3f}; {} sent by all ranks in a step\n",
                            s.attention_imbalance, format_bytes(s.bytes_sent));
}

std::string describe(const MemoryVerdict& memory) {
  std::string text = "memory: " + memory.text() + "\n";
  const std::size_t shown = std::min(kShown, memory.beyond.size());
  for (std::size_t i = 0; i < shown; ++i) text += "  " + memory.beyond[i] + "\n";
  if (memory.beyond.size() > shown) {
    text += fmt::format("  ... and {} more such lines\n", memory.beyond.size() - shown);
  }
  return text;
}

}  // namespace cadenza::app
