// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "app/planner/advise/advice.hpp"
#include "app/planner/advise/question.hpp"
#include "app/planner/search/search_report.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/config/load.hpp"

namespace cadenza::app {
namespace {

std::string section(const char* title) {
  return fmt::format("\n== {} ==\n", title);
}

enum class Verdict { pays, loses, not_sure, unknown };

/// As ratio_text prints it, so that words and numbers agree.
double printed(double value) {
  return std::stod(fmt::format("{:.2f}", value));
}

/// That simulated steps are off by (docs/simulation.md): a difference that is less is none.
constexpr double kNoise = 0.02;

Verdict verdict_of(const StepRatio& cad) {
  if (std::isinf(cad.high)) return Verdict::unknown;
  if (printed(cad.low) > 1 + kNoise) return Verdict::pays;
  return printed(cad.high) < 1 - kNoise ? Verdict::loses : Verdict::not_sure;
}

/// Where steps are so much work that few were simulated.
std::string unknown_gain_text(const Advice& advice) {
  const StepRatio& cad = *advice.choice.cad;
  const auto simulated = std::ranges::count_if(advice.choice.considered, [](const Considered& one) {
    return one.steps > 0 && disaggregates(one.candidate);
  });
  return fmt::format(
      "What CAD gains is not known: {} with it {} simulated, {}, too few for an interval; there it "
      "is {:.2f} x as fast as the best without it.",
      counted(simulated, "layout"), simulated == 1 ? "was" : "were", counted(cad.steps, "step"),
      cad.value);
}

std::string lines_of(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += fmt::format("  {}\n", line);
  return text;
}

std::string bins_text(const Documents& documents) {
  std::string text =
      fmt::format("  {:>8} {:>10} {:>8} {:>10}\n", "tokens", "documents", "tokens", "attention");
  for (const LengthBin& bin : documents.bins) {
    text += fmt::format("  {:>8} {:>8.1f} % {:>6.1f} % {:>8.1f} %\n",
                        "< " + format_tokens(static_cast<double>(bin.to)), 100 * bin.documents,
                        100 * bin.tokens, 100 * bin.attention);
  }
  return text;
}

std::string scenarios_text(const std::vector<Scenario>& scenarios) {
  constexpr const char* kRow = "  {:<35} {:>9} {:>9}  {}\n";  // 80 columns
  std::string text = fmt::format(kRow, "", "cad", "without", "cad is as fast");
  for (const Scenario& one : scenarios) {
    text += fmt::format(kRow, one.what, outlook_text(one.with), outlook_text(one.without),
                        one.cad ? ratio_text(*one.cad) : "");
  }
  return text;
}

/// How the experiment is run.
std::string to_submit(const Advice& advice) {
  constexpr double kDevice = 5e13;  // FLOP/s of a processor that is taken for a device
  const std::int64_t each = advice.machine.ranks_per_node;
  const std::int64_t ranks = advice.choice.experiment.ranks();
  const std::string file =
      advice.folder.empty() ? "experiment.yaml" : advice.folder + "/experiment.yaml";
  const bool device = advice.machine.peak_flops_per_second >= kDevice;
  std::string text = fmt::format(
      "sbatch --nodes={}{} jobscripts/{}.sbatch {}{}\n", each > 0 ? (ranks + each - 1) / each : 1,
      device ? "" : fmt::format(" --ntasks-per-node={}", each > 0 ? each : ranks),
      device ? "multi_node_gpu" : "single_node_cpu", file, device ? " --set run.device=cuda" : "");
  if (advice.folder.empty()) text += "# --output FOLDER writes experiment.yaml and this page\n";
  return text;
}

std::string instructions_text(const Advice& advice) {
  std::string text;
  for (const Instruction& one : advice.instructions) {
    const Recipe& recipe = one.recipe;
    text += fmt::format("\n{} ({}):\n", recipe.stack, row_text(advice, one));
    const std::string body = to_type(advice, one);
    for (std::size_t begin = 0; begin < body.size();) {
      const std::size_t end = std::min(body.find('\n', begin), body.size());
      text += fmt::format("    {}\n", body.substr(begin, end - begin));
      begin = end + 1;
    }
    for (const std::string& line : recipe.missing) {
      text += fmt::format("  no equivalent: {}\n", line);
    }
    for (const std::string& line : recipe.notes) text += fmt::format("  note: {}\n", line);
  }
  return text;
}

}  // namespace

std::string question_text(const Advice& advice) {
  const config::Experiment& e = advice.asked;
  const std::int64_t sequence = sequence_of(advice.question, e);
  std::string text =
      fmt::format("{} on {} {}, sequences of {} tokens, {} tokens a step", advice.question.model,
                  e.ranks(), advice.machine.name, format_tokens(static_cast<double>(sequence)),
                  format_tokens(static_cast<double>(e.batch.tokens)));
  return text + fmt::format(", as {}", e.cluster.software.name);
}

/// Of the mean step, " (low to high)"; empty where it is not known.
std::string interval_text(const Considered& one) {
  if (one.half == 0) return "";
  return fmt::format(" ({} to {})", step_text(one.seconds - one.half),
                     step_text(one.seconds + one.half));
}

std::string answer_text(const Advice& advice) {
  const std::vector<Considered>& all = advice.choice.considered;
  const Considered& first = all.front();
  const auto untried = std::ranges::count(all, true, &Considered::out_of_time);
  std::string text = fmt::format(
      "The fastest {} {}, {}: {}{} a step, {} tokens/s", untried > 0 ? "found is" : "is",
      layout_text(first.candidate), placement_text(first.candidate), step_text(first.seconds),
      interval_text(first), format_count(advice.documents.tokens / first.seconds));
  if (first.utilization > 0) text += fmt::format(", MFU {:.0f} %", 100 * first.utilization);
  text += ".";
  if (untried == 0) return text;
  return text + fmt::format(" The search ran out of time: {} not simulated may be faster.",
                            counted(untried, "layout"));
}

std::string cad_text(const Advice& advice) {
  const auto& cad = advice.choice.cad;
  if (!cad) {
    return "What CAD gains is not known: the search simulated no layout with it, or none without.";
  }
  // The interval is of the steps, not of what was left out.
  const bool all =
      std::ranges::count(advice.choice.considered, true, &Considered::out_of_time) == 0;
  std::string text = fmt::format("CAD is {} as fast as the best without it{}.", ratio_text(*cad),
                                 all ? "" : ", of those simulated");
  switch (verdict_of(*cad)) {
    case Verdict::unknown:
      return unknown_gain_text(advice);
    case Verdict::pays:
      return text + " It pays here.";
    case Verdict::loses:
      return text + " It does not pay here.";
    case Verdict::not_sure:
      break;
  }
  if (printed(cad->low) == 1 && printed(cad->high) == 1) return text + " It gains nothing here.";
  const bool differs = printed(cad->high) < 1 || printed(cad->low) > 1;
  if (!differs) return text + " No difference is certain.";
  return text + fmt::format(" That may be less than what simulations are off by ({:.0f} %).",
                            100 * kNoise);
}

std::string pays_text(const std::vector<Scenario>& scenarios) {
  std::vector<std::string> pays, not_sure, unknown, loses;
  for (const Scenario& one : scenarios) {
    if (!one.cad) continue;
    const Verdict verdict = verdict_of(*one.cad);
    auto& kind = verdict == Verdict::unknown ? unknown
                 : verdict == Verdict::pays  ? pays
                 : verdict == Verdict::loses ? loses
                                             : not_sure;
    kind.push_back(one.what);
  }
  std::string text;
  const auto add = [&](const char* what, const std::vector<std::string>& where) {
    if (where.empty()) return;
    text += fmt::format("{}{}: {}.", text.empty() ? "" : " ", what, fmt::join(where, "; "));
  };
  add("These two layouts say that CAD pays", pays);
  add(text.empty() ? "These two layouts say that CAD does not pay" : "It does not", loses);
  add("No difference is certain", not_sure);
  add("Too few steps to say", unknown);
  return text;
}

std::vector<std::string> documents_text(const Documents& d) {
  return {
      fmt::format("{} documents in {} steps, {} tokens in the mean", d.count, d.steps,
                  format_tokens(d.mean)),
      fmt::format("half of them up to {} tokens, 99 % up to {}, longest {}",
                  format_tokens(static_cast<double>(d.median)),
                  format_tokens(static_cast<double>(d.percentile_99)),
                  format_tokens(static_cast<double>(d.longest))),
      fmt::format("core attention is {:.0f} % of the model's FLOPs",
                  100 * d.attention_flops / d.model_flops),
      fmt::format("the sequence with most attention of a step has {:.2f} x the mean", d.imbalance)};
}

std::string ratio_text(const StepRatio& ratio) {
  if (std::isinf(ratio.high))
    return fmt::format("{:.2f} x ({})", ratio.value, counted(ratio.steps, "step"));
  return fmt::format("{:.2f} x ({:.2f} to {:.2f})", ratio.value, ratio.low, ratio.high);
}

std::string outlook_text(const Outlook& outlook) {
  if (outlook.seconds == 0) return "-";
  return step_text(outlook.seconds) + (outlook.fits ? "" : " *");
}

std::string row_text(const Advice& advice, const Instruction& instruction) {
  const Candidate& candidate = instruction.candidate;
  const config::Shard shard = candidate.parallel.shard;
  const bool as_it_is = shard == advice.choice.considered[instruction.row].candidate.parallel.shard;
  if (instruction.row == 0 && as_it_is) {
    return instruction.recipe.same() ? "row 1, the fastest"
                                     : "row 1; no simulated row has its equivalent";
  }
  std::string text =
      fmt::format("row {}{}: {}, {}; {:.2f} x the time of the fastest", instruction.row + 1,
                  as_it_is ? "" : fmt::format(" with shard {}", config::word_of(shard)),
                  layout_text(candidate), placement_text(candidate), instruction.slower);
  if (instruction.steps > 0) text += ", over " + counted(instruction.steps, "equal step");
  return text;
}

std::string to_type(const Advice& advice, const Instruction& instruction) {
  return instruction.recipe.stack == kOwnStack ? to_submit(advice) : instruction.recipe.text;
}

std::string to_text(const Advice& a) {
  std::string text = question_text(a) + "\n\n" + answer_text(a) + "\n" + cad_text(a) + "\n";
  text += section("Documents") + lines_of(documents_text(a.documents)) + bins_text(a.documents);
  text += section("Layouts") + a.choice.explanation + "\n";
  text += section("If something changes") + scenarios_text(a.scenarios);
  const std::string pays = pays_text(a.scenarios);
  if (!pays.empty()) text += "  " + pays + "\n";
  text += fmt::format("  {}\n", kScenarioNote);
  text += section("How sure") +
          lines_of(sureness(a.evidence, a.asked.cluster.software.name, a.machine));
  text += section("What to type") + instructions_text(a).substr(1);
  return text;
}

}  // namespace cadenza::app
