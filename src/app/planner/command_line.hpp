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

enum class Command { train, evaluate, attend, plan, simulate, advise, sweep, calibrate, convert };

/// What `cadenza advise` is asked about.
struct Question {
  std::string model;    ///< a name in inputs/models, or the path of a config.json
  std::string machine;  ///< a name in inputs/machines, or a path
  std::int64_t devices = 0;
  std::int64_t tensor = 0;           ///< tensor parallelism; 0: searched
  std::string lengths = "pretrain";  ///< of documents: a name in inputs/lengths, or a path
  std::int64_t sequence = 131072;    ///< tokens of the longest document; microbatches are multiples
  std::int64_t tokens = 0;           ///< of a step; 0: 16384 a device, at least a sequence
  std::string software = "cadenza";  ///< cluster.software
};

struct CommandLine {
  Command command = Command::train;
  std::string experiment;              ///< path of the YAML; sweep: of the sweep
  std::vector<std::string> overrides;  ///< --set key.path=value
  std::string output;            ///< train, evaluate, simulate, advise, sweep: folder; others: file
  bool force = false;            ///< attend, calibrate: `output` may be any file
  std::string from;              ///< train, evaluate: checkpoint or folder; train: empty: step 0
  bool dry_run = false;          ///< train
  std::string input;             ///< attend, convert
  std::string index;             ///< attend, plan: file with the index of sparse attention
  std::string format = "table";  ///< evaluate, plan, simulate, advise
  std::int64_t step = 0;         ///< plan; simulate: the first
  std::int64_t steps = 0;        ///< simulate, sweep; 0: the file's number
  std::string trace;             ///< simulate: none, summary, full; empty: depends on `output`
  Question question;             ///< advise
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
