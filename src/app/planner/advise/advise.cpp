// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "app/planner/advise/advice.hpp"
#include "app/planner/advise/question.hpp"
#include "app/planner/commands.hpp"
#include "app/planner/corpus.hpp"
#include "app/planner/experiment_file.hpp"
#include "app/planner/terminal.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/data/corpus.hpp"

namespace cadenza::app {
namespace {

namespace fs = std::filesystem;

/// Before the search, which takes a minute. @throws Error(data)
void make_folder(const std::string& folder) {
  if (folder.empty()) return;
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return;
  fail(ExitCode::data, "{}: cannot be made: {}; valid: --output with a folder or a new one", folder,
       error.message());
}

void write_file(const std::string& folder, const std::string& name, const std::string& text) {
  const fs::path path = fs::path(folder) / name;
  std::ofstream file(path, std::ios::trunc);
  file << text << std::flush;
  if (!file) fail(ExitCode::data, "{}: cannot be written", path.string());
}

/// Of those with cad, and of those without, the one that the search compared over most steps, the
/// first of equals: its best of the kind.
Contenders contenders_of(const std::vector<Considered>& considered) {
  Contenders found;
  for (const Considered& one : considered) {
    if (one.steps == 0) continue;
    const Considered*& best = disaggregates(one.candidate) ? found.with : found.without;
    if (best == nullptr || one.steps > best->steps) best = &one;
  }
  return found;
}

Advice advise_on(const CommandLine& line) {
  Advice advice;
  advice.question = line.question;
  advice.asked = experiment_of(line.question, line.overrides);
  advice.machine = load_machine(advice.asked.cluster);
  advice.folder = line.output;
  const config::Experiment& e = advice.asked;
  advice.evidence = evidence_for(e.cluster.software.name, advice.machine.name);
  const auto corpus = open_corpus(e, true);
  advice.documents = documents_of(e, data::Packer(*corpus, e));
  advice.choice = search_layout(e, *corpus, advice.machine, true);
  const Contenders contenders = contenders_of(advice.choice.considered);
  std::optional<Progress> progress;
  advice.scenarios =
      scenarios_of(e, advice.machine, contenders, advice.choice.cad, [&](int done, int of) {
        if (!progress) progress.emplace(true, of, "simulation", 0, stderr);
        progress->show(done, "of what may change");
      });
  if (progress) progress->finish();
  const std::int64_t sequence = sequence_of(advice.question, e);
  const std::int64_t each = advice.machine.ranks_per_node;
  advice.instructions = instructions_of(
      e, advice.machine, *corpus, advice.choice.considered,
      {cadenza_recipe, [&](const auto& one) { return megatron_recipe(one, sequence, each); },
       [&](const auto& one) { return torchtitan_recipe(one, sequence); }});
  return advice;
}

}  // namespace

void advise(const CommandLine& line) {
  const bool is_new = !line.output.empty() && !fs::exists(line.output);
  make_folder(line.output);
  Advice advice;
  try {
    advice = advise_on(line);
  } catch (...) {
    std::error_code ignored;
    if (is_new) fs::remove(line.output, ignored);
    throw;
  }
  const std::string json = to_json(advice);
  if (!line.output.empty()) {
    write_file(line.output, "advice.html", to_page(advice));
    write_file(line.output, "advice.json", json + "\n");
    for (const Instruction& one : advice.instructions) {
      write_file(line.output, one.recipe.file, one.recipe.text);
    }
  }
  if (line.format == "json") {
    fmt::print("{}\n", json);
    return;
  }
  print(to_text(advice));
  if (!line.output.empty()) {
    print(
        fmt::format("\nThe page: {}/advice.html; its numbers: advice.json; what to type: "
                    "experiment.yaml, megatron.sh, torchtitan.toml\n",
                    line.output));
  }
}

}  // namespace cadenza::app
