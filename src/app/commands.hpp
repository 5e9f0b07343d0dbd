// SPDX-License-Identifier: Apache-2.0
// The subcommands that need more than a planner (app/planner/commands.hpp). Each runs a part of:
// experiment -> documents -> batch -> plan -> program -> execute -> trace.
#pragma once

#include "app/planner/command_line.hpp"
#include "cadenza/comm/communicator.hpp"

namespace cadenza::app {

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

/// Simulates all points of a grid, one table row each. One process, all cores.
void sweep(const CommandLine& line);

/// Measures this machine and writes a machine file; collective over `world`.
void calibrate(comm::Communicator& world, const CommandLine& line);

/// Converts a checkpoint to a folder of Hugging Face's transformers, or the reverse. One process.
void convert(const CommandLine& line);

/// All subcommands and what `--help` says.
Program whole_program();

/// Runs the command line. @return exit code
int run(int argc, char** argv);

}  // namespace cadenza::app
