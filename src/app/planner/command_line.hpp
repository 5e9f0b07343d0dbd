// SPDX-License-Identifier: Apache-2.0
// The command line: subcommands, options, help.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/planner/terminal.hpp"

namespace CLI {
class App;
}

namespace cadenza::app {

enum class Command { train, evaluate, attend, plan, simulate, sweep, calibrate };

struct CommandLine {
  Command command = Command::train;
  std::string experiment;              ///< path of the YAML; sweep: of the sweep
  std::vector<std::string> overrides;  ///< --set key.path=value
  std::string output;    ///< train, evaluate, simulate, sweep: folder; attend, calibrate: file
  bool force = false;    ///< attend, calibrate: `output` may be any file
  std::string from;      ///< train, evaluate: checkpoint or folder; train: empty: step 0
  bool dry_run = false;  ///< train
  std::string input;     ///< attend
  std::string index;     ///< attend, plan: file with the index of sparse attention
  std::string format = "table";  ///< evaluate, plan, simulate
  std::int64_t step = 0;         ///< plan; simulate: the first
  std::int64_t steps = 0;        ///< simulate, sweep; 0: the file's number
  std::string trace;             ///< simulate: none, summary, full; empty: depends on `output`
  Detail detail = Detail::usual;
};

/// Adds a subcommand, whose options fill `line`.
using AddCommand = void (*)(CLI::App& app, CommandLine& line);

/// What a program says of itself, and its subcommands.
struct Program {
  const char* description;
  const char* footer;
  std::vector<AddCommand> commands;
};

/// Parses the command line. Prints help or an error itself and sets `exit_code` if there is nothing
/// to run.
std::optional<CommandLine> parse_command_line(int argc, char** argv, const Program& program,
                                              int& exit_code);

}  // namespace cadenza::app
