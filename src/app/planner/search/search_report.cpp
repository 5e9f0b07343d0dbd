// SPDX-License-Identifier: Apache-2.0
#include "app/planner/search/search_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "app/planner/predict/forecast.hpp"
#include "app/planner/search/room.hpp"
#include "app/planner/step_report.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/config/load.hpp"

namespace cadenza::app {
namespace {

constexpr std::size_t kShown = 6;
constexpr std::size_t kTooLargeShown = 3;
constexpr std::size_t kEstimatedShown = 3;
constexpr const char* kRow =
    "{:>2} {:>4} {:>4} {:>3} {:>3} {:>3} {:>4} {:<14} {:<9} {:<9} {:>6} {:>8}\n";

bool disaggregates(const Judged& judged) {
  return disaggregates(judged.candidate);
}

std::string bytes_text(std::int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

/// In its column.
std::string short_text(const Candidate& candidate) {
  constexpr std::size_t kWidth = 14;
  constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kShorter = {
      {{", longest", ""}, {"ping-pong", "pp"}}};
  std::string text = placement_text(candidate);
  for (const auto& [longer, shorter] : kShorter) {
    const std::size_t place = text.find(longer);
    if (text.size() <= kWidth || place == std::string::npos) continue;
    text.replace(place, longer.size(), shorter);
  }
  return text;
}

std::string row(std::string_view rank, const Judged& j, std::string_view step) {
  const config::Parallel& p = j.candidate.parallel;
  const config::Attention& a = j.candidate.attention;
  const std::string servers = fmt::format("{}{}", a.mixed ? "+" : "", a.servers);
  const std::string stages =
      p.chunks > 1 ? fmt::format("{}x{}", p.pipeline, p.chunks) : fmt::format("{}", p.pipeline);
  return fmt::format(kRow, rank, p.data, stages, p.tensor, p.context, servers,
                     format_tokens(static_cast<double>(j.candidate.microbatch)),
                     short_text(j.candidate), config::word_of(j.candidate.recompute),
                     config::word_of(p.shard), step, bytes_text(j.bytes));
}

std::string head(std::string_view step) {
  return fmt::format(kRow, "", "data", "pipe", "ten", "ctx", "srv", "mb", "placement", "recompute",
                     "shard", step, "memory");
}

struct StepPart {
  const char* name;
  double StepParts::*seconds;
};
constexpr std::array<StepPart, 4> kParts = {{{"attention", &StepParts::attention},
                                             {"imbalance", &StepParts::imbalance},
                                             {"other computation", &StepParts::dense},
                                             {"waiting", &StepParts::exposed}}};

/// Where the time of the best goes.
std::string shares(const Judged& best) {
  std::string text;
  for (const StepPart& part : kParts) {
    text += fmt::format("{}{} {:.0f} %", text.empty() ? "" : ", ", part.name,
                        100.0 * best.parts.*part.seconds / best.seconds);
  }
  return text;
}

/// What costs a loser most against the best.
std::string loses_by(const Judged& loser, const Judged& best) {
  if (loser.seconds <= best.seconds) return "as fast as the first";
  const auto more = [&](const StepPart& part) {
    return loser.parts.*part.seconds - best.parts.*part.seconds;
  };
  const StepPart& most = *std::ranges::max_element(kParts, {}, more);
  return fmt::format("+{}: {} +{}", format_duration(loser.seconds - best.seconds), most.name,
                     format_duration(std::max(0.0, more(most))));
}

/// Model FLOPs over those of the machine's peak; 0: it is not known.
double utilization(const SearchReport& report, const Judged& j) {
  const double peak =
      report.machine.peak_flops_per_second * static_cast<double>(report.given.ranks());
  return peak > 0 ? j.model_flops / (j.seconds * peak) : 0;
}

void add_simulated(std::string& text, const SearchReport& report, std::size_t i) {
  const Judged& j = report.ranked[i];
  const Judged& best = report.ranked.front();
  text += row(fmt::format("{}", i + 1), j, step_text(j.seconds));
  const double used = utilization(report, j);
  text += fmt::format("{:>6}{} tokens/s, {}imbalance {:.2f}; {}\n", "",
                      format_count(report.tokens / j.seconds),
                      used > 0 ? fmt::format("MFU {:.0f} %, ", 100 * used) : "",
                      j.attention_imbalance, i == 0 ? "chosen" : loses_by(j, best));
}

/// The best ones, and the best with cad and the best without, wherever they stand.
std::string ranking(const SearchReport& report) {
  const std::vector<Judged>& ranked = report.ranked;
  std::string text = head("step");
  for (std::size_t i = 0; i < ranked.size(); ++i) {
    const bool first = std::ranges::find(ranked, disaggregates(ranked[i]), disaggregates) ==
                       ranked.begin() + static_cast<std::ptrdiff_t>(i);
    const bool few = i < kShown && (ranked[i].steps > 1 || ranked.front().steps == 1);
    if (few || first) add_simulated(text, report, i);
  }
  return text;
}

std::string limit_text(const SearchReport& report) {
  if (report.limit == 0) return "memory limit unknown (set run.memory)";
  return fmt::format("{} of memory each ({})", bytes_text(report.limit),
                     report.given.run.memory > 0 ? "run.memory" : "the machine's");
}

/// Why a candidate was not simulated.
std::string why(const Judged& j, const SearchReport& report) {
  const double best = report.ranked.front().seconds;
  switch (j.outcome) {
    case Outcome::bound:
      return fmt::format("lower bound {}", step_text(j.bound));
    case Outcome::slower:
      return fmt::format("on {}: {:.2f} x the best", j.sample, j.expected / best);
    case Outcome::late:
      return fmt::format("on {}: search time was over", j.sample);
    case Outcome::untried:
      return "search time was over";
    case Outcome::too_large:
      if (j.bytes > report.limit) return fmt::format("does not fit: {}", j.fullest);
      return fmt::format("may not fit: in a long run up to {}", bytes_text(need_of_run(j)));
    case Outcome::simulated:
      break;
  }
  return "";
}

std::string without_memory(const SearchReport& report) {
  std::vector<Judged> large = report.too_large;
  std::erase_if(large, [&](const Judged& j) { return j.bound >= report.ranked.front().seconds; });
  if (large.empty()) return "";
  std::ranges::stable_sort(large, {}, &Judged::bound);
  std::string text =
      fmt::format("{} candidates that might be faster do not fit into {}, for example\n",
                  large.size(), bytes_text(report.limit)) +
      head(">=");
  for (std::size_t i = 0; i < std::min(kTooLargeShown, large.size()); ++i) {
    text += row("-", large[i], step_text(large[i].bound));
    text += fmt::format("{:>6}{}\n", "", why(large[i], report));
  }
  return text;
}

/// Of those that were simulated: how far estimates were from it.
std::string errors_text(const SearchReport& report) {
  double least = 0, most = 0;
  std::size_t count = 0;
  for (const Judged& judged : report.ranked) {
    if (judged.expected == 0) continue;
    const double error = 100.0 * (judged.expected / judged.first - 1.0);
    least = count == 0 ? error : std::min(least, error);
    most = count == 0 ? error : std::max(most, error);
    ++count;
  }
  if (count == 0) return "";
  return fmt::format("{} simulated candidates were estimated first: {:+.1f} to {:+.1f} % off\n",
                     count, least, most);
}

std::int64_t count(const SearchReport& report, Outcome outcome) {
  return std::ranges::count(report.others, outcome, &Judged::outcome);
}

bool only_estimated(const Judged& judged) {
  return judged.outcome == Outcome::slower || judged.outcome == Outcome::late;
}

std::string estimates(const SearchReport& report) {
  std::vector<Judged> all;
  std::ranges::copy_if(report.others, std::back_inserter(all), only_estimated);
  if (all.empty()) return "";
  std::string text =
      fmt::format("{} layouts and placements were only estimated, for example\n", all.size()) +
      head("about");
  for (std::size_t i = 0; i < std::min(kEstimatedShown, all.size()); ++i) {
    text += row("-", all[i], step_text(all[i].expected));
    text += fmt::format("{:>6}{}\n", "", why(all[i], report));
  }
  return text + errors_text(report) + "\n";
}

/// How many layouts and placements there are, and what was done with them.
std::string counts(const SearchReport& report) {
  const auto estimated = count(report, Outcome::slower) + count(report, Outcome::late);
  std::string text = fmt::format(
      "{} layouts and placements: {} simulated,\n      {} estimated on a part of the step, {} do "
      "not "
      "fit,\n      {} excluded by their lower bound",
      report.arrangements, report.arrangements - report.others.size(), estimated,
      count(report, Outcome::too_large), count(report, Outcome::bound));
  const auto untried = count(report, Outcome::untried);
  if (untried > 0) text += fmt::format(", {} not tried", untried);
  if (const auto late = count(report, Outcome::late); untried + late > 0) {
    text += fmt::format(
        "\nThe search ran out of time: {} of those estimated or not tried\n      may be faster",
        untried + late);
  }
  return text + fmt::format("\n{} candidates simulated, the best of them for {}:\n\n",
                            report.ranked.size(), counted(report.ranked.front().steps, "step"));
}

std::string interval(const StepRatio& ratio) {
  if (std::isinf(ratio.high)) {
    return fmt::format("{}; others may say otherwise", counted(ratio.steps, "step"));
  }
  return fmt::format("{:.2f} to {:.2f}, {}", ratio.low, ratio.high, counted(ratio.steps, "step"));
}

/// Why none of the kind was simulated; empty where there is none.
std::string unsimulated(const SearchReport& report, bool cad) {
  std::vector<Judged> kind;
  std::ranges::copy_if(report.others, std::back_inserter(kind),
                       [&](const Judged& j) { return disaggregates(j) == cad; });
  if (kind.empty()) return "";
  const std::string none = cad ? "no cad" : "nothing but cad";
  const auto estimated = std::ranges::find_if(kind, only_estimated);
  if (estimated != kind.end()) {
    return fmt::format(
        "{} was simulated; the most promising of these,\n        {},\n        {}: {}\n", none,
        layout_text(estimated->candidate), placement_text(estimated->candidate),
        why(*estimated, report));
  }
  constexpr std::array<std::pair<Outcome, const char*>, 3> kWhy = {
      {{Outcome::untried, "not tried: search time was over"},
       {Outcome::too_large, "too large for the memory"},
       {Outcome::bound, "excluded by their lower bound"}}};
  std::string reasons;
  for (const auto& [outcome, reason] : kWhy) {
    const auto found = std::ranges::count(kind, outcome, &Judged::outcome);
    if (found == 0) continue;
    reasons += fmt::format("{}\n        {} of {} layouts and placements {}",
                           reasons.empty() ? "" : ",", found, kind.size(), reason);
  }
  return fmt::format("{} was simulated or estimated:{}\n", none, reasons);
}

/// What disaggregation gets: the best with it against the best without, or why it is not known.
std::string verdict(const SearchReport& report) {
  const auto with = std::ranges::find(report.ranked, true, disaggregates);
  const auto without = std::ranges::find(report.ranked, false, disaggregates);
  if (with != report.ranked.end() && without != report.ranked.end()) {
    const StepRatio ratio =
        report.cad.value_or(StepRatio{.value = without->seconds / with->seconds});
    return fmt::format(
        "cad is {:.2f} x as fast as the best without it ({}),\n        {} against {} of\n"
        "        {},\n        {}\n",
        ratio.value, interval(ratio), step_text(with->seconds), step_text(without->seconds),
        layout_text(without->candidate), placement_text(without->candidate));
  }
  return unsimulated(report, with == report.ranked.end());
}

/// Lines that a shell joins.
std::string to_run(const Candidate& candidate) {
  constexpr std::size_t kColumns = 76;
  std::string text = "to run it:";
  std::size_t line = text.size();
  for (const std::string& setting : settings(candidate)) {
    const bool wraps = line + 1 + setting.size() > kColumns;
    text += (wraps ? " \\\n        " : " ") + setting;
    line = (wraps ? 8 : line + 1) + setting.size();
  }
  return text;
}

}  // namespace

std::string step_text(double seconds) {
  return seconds >= 1 && seconds < 10 ? fmt::format("{:.2f} s", seconds) : format_duration(seconds);
}

StepParts parts_of(const simulate::Result& step) {
  StepParts parts;
  double most = 0;
  const auto ranks = static_cast<double>(step.ranks.size());
  for (const simulate::RankTimes& times : step.ranks) {
    parts.attention += times.attention / ranks;
    parts.dense += (times.busy() - times.attention) / ranks;
    most = std::max(most, times.attention);
  }
  const double rest = std::max(0.0, step.seconds - parts.attention - parts.dense);
  parts.imbalance = std::min(rest, most - parts.attention);
  parts.exposed = rest - parts.imbalance;
  return parts;
}

double imbalance_of(const config::Experiment& e, const simulate::Result& step) {
  std::vector<RankStep> ranks(step.ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    ranks[i].attention_ns = static_cast<std::int64_t>(step.ranks[i].attention * 1e9);
  }
  return attention_imbalance(ranks, attention_servers(e));
}

std::string describe(const SearchReport& report) {
  const Judged& best = report.ranked.front();
  std::string text =
      fmt::format("auto: {} devices, predicted for {}\n      {}\n", report.given.ranks(),
                  machine_text(report.given.cluster, report.machine), limit_text(report));
  text += counts(report);
  text += ranking(report) + "\n";
  text += estimates(report);
  const std::string large = without_memory(report);
  if (!large.empty()) text += large + "\n";
  text += verdict(report);
  return text +
         fmt::format("chosen: {},\n        {}, recompute {}, shard {}\n        {}\n        {}\n{}",
                     layout_text(best.candidate), placement_text(best.candidate),
                     config::word_of(best.candidate.recompute),
                     config::word_of(best.candidate.parallel.shard), shares(best),
                     sharded_text(best.candidate.parallel), to_run(best.candidate));
}

std::vector<Considered> considered(const SearchReport& report) {
  std::vector<Considered> all;
  for (const Judged& j : report.ranked) {
    const bool first = &j == &report.ranked.front();
    all.push_back({j.candidate, "simulated", first ? "" : loses_by(j, report.ranked.front()),
                   j.seconds, j.half, j.steps, j.bound, j.bytes, j.parts, j.attention_imbalance,
                   utilization(report, j), j.work, false});
  }
  for (const Judged& j : report.others) {
    const bool estimated = only_estimated(j);
    const char* status = estimated                       ? "estimated"
                         : j.outcome == Outcome::untried ? "not tried"
                                                         : "excluded";
    Considered& one = all.emplace_back();
    one.candidate = j.candidate;
    one.status = status;
    one.why = why(j, report);
    one.seconds = estimated ? j.expected : 0.0;
    one.bound_seconds = j.bound;
    one.bytes = estimated || j.outcome == Outcome::too_large ? j.bytes : 0;
    one.out_of_time = j.outcome == Outcome::untried || j.outcome == Outcome::late;
  }
  return all;
}

}  // namespace cadenza::app
