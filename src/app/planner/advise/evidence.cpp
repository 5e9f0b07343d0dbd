// SPDX-License-Identifier: Apache-2.0
#include "app/planner/advise/evidence.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <iterator>

#include "cadenza/base/error.hpp"
#include "cadenza/base/text.hpp"

namespace cadenza::app {
namespace {

constexpr const char* kFile = "inputs/checked.json";
constexpr std::int64_t kMostBytes = 1 << 20;

std::vector<Evidence> all_evidence() {
  const std::string text =
      read_text(kFile, {ExitCode::data, kFile, "the file that comes with the program", kMostBytes});
  std::vector<Evidence> all;
  try {
    for (const nlohmann::json& row : nlohmann::json::parse(text)) {
      all.push_back({row.at("software"), row.at("machine"), row.at("steps"), row.at("median"),
                     row.at("ninety"), row.at("memory_right"), row.at("memory_all"),
                     row.at("source"), row.value("logs", std::string())});
    }
  } catch (const nlohmann::json::exception& error) {
    fail(ExitCode::data, "{}: {}; valid: the file that comes with the program", kFile,
         printable(error.what()));
  }
  return all;
}

}  // namespace

std::vector<Evidence> evidence_for(const std::string& software, const std::string& machine) {
  const std::vector<Evidence> all = all_evidence();
  const std::function<bool(const Evidence&)> nearer[] = {
      [&](const Evidence& e) { return e.software == software && e.machine == machine; },
      [&](const Evidence& e) { return e.software == software; },
      [&](const Evidence& e) { return e.machine == machine; }};
  for (const auto& near : nearer) {
    std::vector<Evidence> found;
    std::ranges::copy_if(all, std::back_inserter(found), near);
    if (!found.empty()) return found;
  }
  return {};
}

std::string text_of(const Evidence& e) {
  std::string text =
      e.logs.empty()
          ? fmt::format("{} measured configurations of {} on {}", e.steps, e.software, e.machine)
          : fmt::format("{} configurations of {}'s published logs on {}, simulated as {}", e.steps,
                        e.logs, e.machine, e.software);
  text += fmt::format(": half within {:.1f} %, nine of ten within {:.1f} %", 100 * e.median,
                      100 * e.ninety);
  if (e.memory_all > 0) {
    text += fmt::format("; memory right in {} of {}", e.memory_right, e.memory_all);
  }
  return text + fmt::format(" ({})", e.source);
}

std::vector<std::string> sureness(const std::vector<Evidence>& evidence,
                                  const std::string& software, const config::Machine& machine) {
  std::vector<std::string> lines;
  for (const Evidence& one : evidence) lines.push_back(text_of(one));
  const bool same = std::ranges::any_of(evidence, [&](const Evidence& e) {
    return e.software == software && e.machine == machine.name && e.logs.empty();
  });
  if (!same) {
    lines.insert(lines.begin(),
                 fmt::format("no measured configuration of {} on {} is known{}", software,
                             machine.name, evidence.empty() ? "" : "; nearest:"));
  }
  const bool assumed = machine.sheet.flops_per_second > 0;
  lines.push_back(fmt::format("rates of {}: {}{}", machine.name, machine.source,
                              assumed
                                  ? "; what its file leaves out is an assumed share of the data "
                                    "sheet (docs/machine.md)"
                                  : ""));
  if (software != "cadenza") {
    lines.emplace_back(
        "none of these measured steps disaggregates core attention; on h200, 5 "
        "configurations of CAD in DistCA's published logs were within 2.6 % "
        "(docs/results/clusters.md)");
  }
  return lines;
}

}  // namespace cadenza::app
