// SPDX-License-Identifier: Apache-2.0
#include "app/planner/command_line.hpp"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <sstream>

#include "app/planner/failure.hpp"
#include "app/planner/version.hpp"
#include "cadenza/base/launcher.hpp"
#include "cadenza/base/text.hpp"

namespace cadenza::app {
namespace {

void add_detail(CLI::App& app, CommandLine& line) {
  CLI::Option* quiet = app.add_flag_callback(
      "--quiet", [&line] { line.detail = Detail::quiet; },
      "Print only results, warnings and errors");
  app.add_flag_callback(
         "--verbose", [&line] { line.detail = Detail::verbose; },
         "Also print the program's build, the experiment with all defaults, and single "
         "measurements")
      ->excludes(quiet);
}

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  return names;
}

/// Suggests ": did you mean --output?"; empty if no word is near.
std::string meant(std::string_view dashes, std::string_view word,
                  const std::vector<std::string>& known) {
  const std::string best = nearest(word, known);
  return best.empty() ? "" : fmt::format(": did you mean {}{}?", dashes, best);
}

/// Describes a word that the parser does not know; empty if it knows all.
std::string unknown_word(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  const CLI::App& command = parsed.empty() ? app : *parsed.front();
  for (const std::string& word : command.remaining()) {
    if (word.starts_with("--")) {
      const std::string name = word.substr(0, word.find('='));
      return fmt::format("unknown option '{}'{}", name,
                         meant("--", std::string_view(name).substr(2), options_of(command)));
    }
    if (!parsed.empty()) continue;
    const std::vector<std::string> known = commands_of(app);
    const std::string hint = meant("", word, known);
    return fmt::format("unknown command '{}'{} valid: {}", word, hint.empty() ? ";" : hint,
                       fmt::join(known, ", "));
  }
  return {};
}

}  // namespace

std::optional<CommandLine> parse_command_line(int argc, char** argv, const Program& program,
                                              int& exit_code) {
  CommandLine line;
  CLI::App app(program.description, "cadenza");
  app.footer(program.footer);
  app.set_version_flag("--version", fmt::format("cadenza {} ({})", kVersion, revision()));
  app.require_subcommand(1);
  for (const AddCommand add : program.commands) add(app, line);
  for (CLI::App* command : app.get_subcommands({})) add_detail(*command, line);
  const bool speaks = launcher_rank() == 0;
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    std::ostringstream text;
    exit_code = speaks ? app.exit(help, text, text) : 0;
    print(text.str());
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    // A launcher ends all ranks at the first failure, so the rank that prints must fail first.
    exit_code = speaks ? static_cast<int>(ExitCode::usage) : 0;
    const std::string unknown = unknown_word(app);
    if (speaks) {
      print_error(fmt::format("{} (see cadenza --help)", unknown.empty() ? error.what() : unknown));
    }
    return std::nullopt;
  }
  return line;
}

}  // namespace cadenza::app
