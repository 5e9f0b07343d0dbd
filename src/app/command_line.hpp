// SPDX-License-Identifier: Apache-2.0
// The command line (subcommands, options, help) and the subcommands. Each runs a part of:
// experiment -> documents -> batch -> plan -> program -> execute -> trace.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/runtime/terminal.hpp"
#include "cadenza/comm/communicator.hpp"

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

/// Parses the command line. Prints help or an error itself and sets `exit_code` if there is nothing
/// to run.
std::optional<CommandLine> parse_command_line(int argc, char** argv, int& exit_code);

// --- The subcommands ---

/// Trains; collective over `world`. @return exit code if a signal ended the run, otherwise 0
int train(comm::Communicator& world, const CommandLine& line);

/// Measures loss and answers of a checkpoint, without updates; collective over `world`.
/// @return exit code if a signal ended it, otherwise 0
int evaluate(comm::Communicator& world, const CommandLine& line);

/// Checks everything that a run needs and prints layout, memory and plan; writes nothing. One
/// process.
void dry_run(const CommandLine& line);

/// Computes core attention alone, file to file; collective over `world`.
void attend(comm::Communicator& world, const CommandLine& line);

/// Prints a step's forward plans. One process.
void print_plan(const CommandLine& line);

/// Simulates all points of a grid, one table row each. One process, all cores.
void sweep(const CommandLine& line);

/// Simulates an experiment's steps. One process.
void simulate(const CommandLine& line);

/// Measures this machine and writes a machine file; collective over `world`.
void calibrate(comm::Communicator& world, const CommandLine& line);

/// Runs the command line. @return exit code
int run(int argc, char** argv);

}  // namespace cadenza::app
