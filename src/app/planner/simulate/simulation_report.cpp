// SPDX-License-Identifier: Apache-2.0
#include "app/planner/simulate/simulation_report.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>

#include "app/planner/search/search_json.hpp"
#include "cadenza/base/text.hpp"

namespace cadenza::app {
namespace {

using simulate::RankTimes;

constexpr std::size_t kShownRanks = 8;  ///< ranks out of memory

/// A part of a step: what it is called, and its seconds of a rank.
struct Class {
  const char* name;
  const char* key;
  double (*seconds)(const RankTimes&);
};
// Those that are a rank's own work come first.
constexpr std::array<Class, 9> kClasses = {
    {{"core attention", "compute_attention", [](const RankTimes& t) { return t.attention; }},
     {"dense", "compute_dense", [](const RankTimes& t) { return t.dense; }},
     {"other compute", "compute_other", [](const RankTimes& t) { return t.other + t.copies; }},
     {"optimizer", "optimizer", [](const RankTimes& t) { return t.optimizer; }},
     {"communication", "communication", [](const RankTimes& t) { return t.communication; }},
     {"attention wait", "attention_wait", [](const RankTimes& t) { return t.attention_wait; }},
     {"pipeline bubble", "pipeline_bubble", [](const RankTimes& t) { return t.pipeline_bubble; }},
     {"tensor-parallel wait", "tensor_parallel_wait",
      [](const RankTimes& t) { return t.tensor_parallel_wait; }},
     {"data-parallel wait", "data_parallel_wait",
      [](const RankTimes& t) { return t.data_parallel_wait; }}}};
constexpr std::size_t kComputing = 4;

struct Spread {
  double mean = 0;
  double most = 0;
  std::size_t rank = 0;  ///< with most
};

template <typename Seconds>
Spread spread(const std::vector<RankTimes>& ranks, Seconds seconds) {
  Spread result;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const double value = seconds(ranks[rank]);
    result.mean += value / static_cast<double>(ranks.size());
    if (value <= result.most) continue;
    result.most = value;
    result.rank = rank;
  }
  return result;
}

/// Adds what the parts and slowest() are made of.
void add_times(RankTimes& sum, const RankTimes& times) {
  for (double RankTimes::*field :
       {&RankTimes::attention, &RankTimes::dense, &RankTimes::other, &RankTimes::copies,
        &RankTimes::optimizer, &RankTimes::communication, &RankTimes::attention_wait,
        &RankTimes::pipeline_bubble, &RankTimes::tensor_parallel_wait,
        &RankTimes::data_parallel_wait}) {
    sum.*field += times.*field;
  }
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
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
    add_times(ranks_[rank], step.ranks[rank]);
  seconds_ += step.seconds;
  ++steps_;
}

std::vector<TimeTable::Part> TimeTable::parts() const {
  std::vector<Part> parts;
  for (const Class& c : kClasses) {
    const Spread s = spread(ranks_, c.seconds);
    parts.push_back({c.name, c.key, s.mean / steps_, s.most / steps_, s.rank});
  }
  return parts;
}

std::string TimeTable::text() const {
  const double step = seconds_ / steps_;
  std::string text = fmt::format("{:<20} {:>17} {:>21}\n", "per step", "mean of ranks", "most");
  for (const Part& part : parts()) {
    if (percent(part.most, step) < 0.005) continue;
    text += fmt::format("{:<20} {:>8} {:>6.1f} % {:>12} {:>6.1f} %  rank {}\n", part.name,
                        duration(part.mean), percent(part.mean, step), duration(part.most),
                        percent(part.most, step), part.rank);
  }
  return text;
}

std::string TimeTable::slowest() const {
  const Spread busy = spread(ranks_, [](const RankTimes& times) { return times.busy(); });
  const Class* reason = kClasses.data();
  double excess = -1;
  for (std::size_t c = 0; c < kComputing; ++c) {
    const Spread all = spread(ranks_, kClasses[c].seconds);
    const double more = kClasses[c].seconds(ranks_[busy.rank]) - all.mean;
    if (more <= excess) continue;
    excess = more;
    reason = &kClasses[c];
  }
  const std::string first = fmt::format("slowest: rank {} computes {} per step", busy.rank,
                                        format_duration(busy.most / steps_));
  if (busy.most <= busy.mean * 1.001) return first + ", like every rank";
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
      "step time   {}; lower bound {}, with balanced computation and all transfers hidden ({:.1f} "
      "% less)\n",
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
  const std::size_t shown = std::min(kShownRanks, memory.beyond.size());
  for (std::size_t i = 0; i < shown; ++i) text += "  " + memory.beyond[i] + "\n";
  if (memory.beyond.size() > shown) {
    text += fmt::format("  ... and {} more such lines\n", memory.beyond.size() - shown);
  }
  return text;
}

namespace {

using Json = nlohmann::ordered_json;

Json parts_of(const TimeTable& table, double step_seconds) {
  Json parts;
  for (const TimeTable::Part& part : table.parts()) {
    parts[part.key] = {{"mean_seconds", part.mean},
                       {"mean_share", part.mean / step_seconds},
                       {"most_seconds", part.most},
                       {"most_rank", part.rank}};
  }
  return parts;
}

Json memory_of(const MemoryVerdict& memory) {
  return {{"fits", memory.fits()},
          {"limit_bytes", memory.limit},
          {"largest_bytes", memory.largest},
          {"largest_rank", memory.fullest},
          {"mean_bytes", memory.mean},
          {"smallest_bytes", memory.smallest},
          {"ranks_beyond", memory.ranks_beyond},
          {"beyond", memory.beyond}};
}

}  // namespace

std::string to_json(const Simulation& simulation, const SimulationSummary& s,
                    const TimeTable& table, const std::string& folder) {
  Json json = {{"name", simulation.experiment().name},
               {"ranks", s.ranks},
               {"nodes", simulation.nodes()},
               {"machine", simulation.machine().name},
               {"software", simulation.experiment().cluster.software.name},
               {"explanation", simulation.explanation()},
               {"decisions", simulation.decisions()},
               {"seconds", s.seconds},
               {"step_seconds", s.steps},
               {"lower_bound_seconds", s.lower_bound_seconds},
               {"tokens", s.tokens},
               {"tokens_per_second", s.tokens_per_second()},
               {"model_flops_utilization", s.model_flops_utilization},
               {"attention_imbalance", s.attention_imbalance},
               {"bytes_sent", s.bytes_sent},
               {"parts", parts_of(table, s.seconds)},
               {"memory", memory_of(s.memory)},
               {"notes", s.notes}};
  if (!simulation.considered().empty()) json["search"] = search_json(simulation.considered());
  if (!folder.empty()) json["output"] = folder;
  return json.dump(2);
}

}  // namespace cadenza::app
