// SPDX-License-Identifier: Apache-2.0
// The page: one HTML file without scripts and other files; its pictures are bars.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "app/planner/advise/advice.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/config/load.hpp"

namespace cadenza::app {
namespace {

constexpr std::size_t kRows = 12;  ///< of layouts

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --ink: light-dark(#1c2024, #e6e8ea);
  --soft: light-dark(#5b6470, #9aa4af); --paper: light-dark(#ffffff, #15181b);
  --line: light-dark(#d9dde2, #30363d);
  --a: #2f6fb3; --b: #d1812c; --c: #7a8a99; --d: #b44b57; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.lead { font-size: 1.1rem; } .soft { color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; color: var(--soft); } td.n, th.n { text-align: right; white-space: nowrap; }
.bar { display: flex; height: .8rem; min-width: 12rem; } .bar i { display: block; height: 100%; }
.a { background: var(--a); } .b { background: var(--b); } .c { background: var(--c); }
.d { background: var(--d); }
.key { display: inline-block; width: .8rem; height: .8rem; margin: 0 .3rem 0 1rem; }
.scale { position: relative; height: 1.1rem; min-width: 14rem; background:
  linear-gradient(var(--line), var(--line)) 50% 0 / 1px 100% no-repeat; }
.scale i { position: absolute; top: .45rem; height: .2rem; background: var(--a); }
.scale b { position: absolute; top: .2rem; width: .25rem; height: .7rem; background: var(--a); }
pre { border: 1px solid var(--line); padding: .7rem; overflow-x: auto; font-size: 13px; }
)";

std::string escaped(std::string_view text) {
  constexpr std::array<std::pair<char, const char*>, 4> kEntities = {
      {{'<', "&lt;"}, {'>', "&gt;"}, {'&', "&amp;"}, {'"', "&quot;"}}};
  std::string result;
  for (const char c : text) {
    const auto* const entity =
        std::ranges::find(kEntities, c, &std::pair<char, const char*>::first);
    entity == kEntities.end() ? result += c : result += entity->second;
  }
  return result;
}

std::string paragraph(std::string_view text, std::string_view kind = "") {
  return text.empty() ? "" : fmt::format("<p class=\"{}\">{}</p>\n", kind, escaped(text));
}

std::string items(const std::vector<std::string>& lines) {
  std::string text = "<ul>\n";
  for (const std::string& line : lines) text += "<li>" + escaped(line) + "</li>\n";
  return text + "</ul>\n";
}

std::string bar(double share, char color) {
  return fmt::format("<i class=\"{}\" style=\"width:{:.2f}%\"></i>", color, 100 * share);
}

std::string key_to(char color, std::string_view what) {
  return fmt::format("<span class=\"key {}\"></span>{}", color, escaped(what));
}

std::string documents_section(const Documents& documents) {
  std::string text = "<h2>Documents</h2>\n" + items(documents_text(documents));
  text += "<table><tr><th class=\"n\">tokens</th><th>" + key_to('c', "documents") +
          key_to('b', "tokens") + key_to('a', "attention") + "</th><th class=\"n\">documents</th>" +
          "<th class=\"n\">tokens</th><th class=\"n\">attention</th></tr>\n";
  for (const LengthBin& bin : documents.bins) {
    text += fmt::format("<tr><td class=\"n\">{} to {}</td><td>", bin.from, bin.to - 1);
    for (const auto& [share, color] : {std::pair{bin.documents, 'c'}, std::pair{bin.tokens, 'b'},
                                       std::pair{bin.attention, 'a'}}) {
      text += "<div class=\"bar\" style=\"height:.35rem\">" + bar(share, color) + "</div>";
    }
    text += fmt::format(
        "</td><td class=\"n\">{:.1f} %</td><td class=\"n\">{:.1f} %</td>"
        "<td class=\"n\">{:.1f} %</td></tr>\n",
        100 * bin.documents, 100 * bin.tokens, 100 * bin.attention);
  }
  return text + "</table>\n";
}

/// Where a step's time goes, as a part of the longest that is shown.
std::string step_bar(const Considered& one, double longest) {
  const StepParts& p = one.parts;
  return "<div class=\"bar\">" + bar(p.attention / longest, 'a') + bar(p.imbalance / longest, 'd') +
         bar(p.dense / longest, 'c') + bar(p.exposed / longest, 'b') + "</div>";
}

std::string layout_row(const Advice& advice, std::size_t i, double longest) {
  const Considered& one = advice.choice.considered[i];
  return fmt::format(
      "<tr><td class=\"n\">{}</td><td>{}<br><b>{}</b>, recompute {}, shard {}<br>"
      "<span class=\"soft\">{}</span></td><td class=\"n\">{:.3g} s</td><td>{}</td>"
      "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
      i + 1, escaped(layout_text(one.candidate)), escaped(placement_text(one.candidate)),
      config::word_of(one.candidate.recompute), config::word_of(one.candidate.parallel.shard),
      escaped(one.why), one.seconds, step_bar(one, longest),
      format_count(advice.documents.tokens / one.seconds),
      one.utilization > 0 ? fmt::format("{:.0f} %", 100 * one.utilization) : "",
      format_bytes(static_cast<double>(one.bytes)));
}

std::string layouts_section(const Advice& advice) {
  const std::vector<Considered>& all = advice.choice.considered;
  const auto simulated = static_cast<std::size_t>(
      std::ranges::count_if(all, [](const Considered& one) { return one.steps > 0; }));
  const std::size_t shown = std::min(kRows, simulated);
  double longest = 0;
  for (std::size_t i = 0; i < shown; ++i) longest = std::max(longest, all[i].seconds);
  std::string text =
      "<h2>Layouts</h2>\n<table><tr><th></th><th>layout and placement</th>"
      "<th class=\"n\">step</th><th>" +
      key_to('a', "attention") + key_to('d', "imbalance") + key_to('c', "other computation") +
      key_to('b', "waiting") +
      "</th><th class=\"n\">tokens/s</th><th class=\"n\">MFU</th>"
      "<th class=\"n\">memory</th></tr>\n";
  for (std::size_t i = 0; i < shown; ++i) text += layout_row(advice, i, longest);
  text += "</table>\n<details><summary>The whole search</summary><pre>" +
          escaped(advice.choice.explanation) + "</pre></details>\n";
  return text;
}

/// The interval of a ratio on a scale from 1/2 to 2, 1 in the middle.
std::string scale(const StepRatio& ratio) {
  const auto place = [](double value) { return std::clamp(50 + 50 * std::log2(value), 0.0, 99.0); };
  std::string text = "<div class=\"scale\">";
  if (!std::isinf(ratio.high) && ratio.low > 0) {
    const double from = place(ratio.low);
    text +=
        fmt::format("<i style=\"left:{:.1f}%;width:{:.1f}%\"></i>", from, place(ratio.high) - from);
  }
  return text + fmt::format("<b style=\"left:{:.1f}%\"></b></div>", place(ratio.value));
}

std::string scenarios_section(const std::vector<Scenario>& scenarios) {
  std::string text =
      "<h2>If something changes</h2>\n<table><tr><th></th><th class=\"n\">with CAD</th>"
      "<th class=\"n\">without</th><th>CAD is as fast, 0.5 to 2 x</th><th></th></tr>\n";
  for (const Scenario& one : scenarios) {
    text += fmt::format(
        "<tr><td>{}</td><td class=\"n\">{}</td><td "
        "class=\"n\">{}</td><td>{}</td><td>{}</td></tr>\n",
        escaped(one.what), outlook_text(one.with), outlook_text(one.without),
        one.cad ? scale(*one.cad) : "", one.cad ? ratio_text(*one.cad) : "");
  }
  return text + "</table>\n" + paragraph(pays_text(scenarios)) + paragraph(kScenarioNote, "soft");
}

std::string instructions_section(const Advice& advice) {
  std::string text = "<h2>What to type</h2>\n";
  for (const Instruction& one : advice.instructions) {
    const Recipe& recipe = one.recipe;
    text += fmt::format("<h3>{} <span class=\"soft\">({})</span></h3>\n<pre>{}</pre>\n",
                        escaped(recipe.stack), escaped(row_text(advice, one)),
                        escaped(to_type(advice, one)));
    std::vector<std::string> lines;
    for (const std::string& line : recipe.missing) lines.push_back("No equivalent: " + line);
    lines.insert(lines.end(), recipe.notes.begin(), recipe.notes.end());
    if (!lines.empty()) text += items(lines);
    if (recipe.stack == kOwnStack) {
      text += "<details><summary>experiment.yaml</summary><pre>" + escaped(recipe.text) +
              "</pre></details>\n";
    }
  }
  return text;
}

}  // namespace

std::string to_page(const Advice& a) {
  const std::string question = escaped(question_text(a));
  return fmt::format(
             "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
             "<meta name=\"viewport\" content=\"width=device-width\">\n"
             "<title>What to run: {}</title>\n<style>{}</style></head><body>\n"
             "<h1>What should I run?</h1>\n<p class=\"soft\">{}</p>\n",
             question, kStyle, question) +
         paragraph(answer_text(a), "lead") + paragraph(cad_text(a), "lead") +
         documents_section(a.documents) + layouts_section(a) + scenarios_section(a.scenarios) +
         "<h2>How sure</h2>\n" +
         items(sureness(a.evidence, a.asked.cluster.software.name, a.machine)) +
         instructions_section(a) + "</body></html>\n";
}

}  // namespace cadenza::app
