// SPDX-License-Identifier: Apache-2.0
// The subcommands. Each is one way through the picture: experiment -> documents -> batch -> plan ->
// program
// -> execute -> trace.
#pragma once

#include "app/command_line.hpp"
#include "cadenza/comm/communicator.hpp"

namespace cadenza::app {

/// Trains; collective over `world`. @return the exit code of a run that a signal ended, else 0
int train(comm::Communicator& world, const CommandLine& line);

/// Checks everything a run needs and prints layout, memory and plan; touches nothing. One process.
void dry_run(const CommandLine& line);

/// Core attention alone, file to file; collective over `world`.
void attend(comm::Communicator& world, const CommandLine& line);

/// Prints a step's forward plans. One process.
void print_plan(const CommandLine& line);

/// Simulates all points of a grid, a row of a table each. One process, all cores.
void sweep(const CommandLine& line);

/// Runs an experiment's steps on the simulator's clock. One process.
void simulate(const CommandLine& line);

/// Measures the machine at hand and writes a machine file; collective over `world`.
void calibrate(comm::Communicator& world, const CommandLine& line);

/// Runs what the command line asks for. @return the exit code
int run(int argc, char** argv);

}  // namespace cadenza::app
