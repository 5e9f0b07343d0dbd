// SPDX-License-Identifier: Apache-2.0
// The subcommands. Each runs a part of: experiment -> documents -> batch -> plan -> program ->
// execute -> trace.
#pragma once

#include "app/command_line.hpp"
#include "cadenza/comm/communicator.hpp"

namespace cadenza::app {

/// Trains; collective over `world`. @return exit code if a signal ended the run, otherwise 0
int train(comm::Communicator& world, const CommandLine& line);

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
