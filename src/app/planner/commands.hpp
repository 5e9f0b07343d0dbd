// SPDX-License-Identifier: Apache-2.0
// The subcommands that need neither MPI nor tensors nor HDF5, and how they run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "app/planner/command_line.hpp"
#include "app/planner/simulate/simulation.hpp"
#include "cadenza/base/sparse_index.hpp"

namespace cadenza::app {

/// Reads the index of sparse attention (--index) for documents of these lengths.
using ReadIndex = SparseIndex (*)(const std::string& path, std::span<const std::int64_t> lengths,
                                  int heads, const config::Attention& attention);

/// Prints a step's forward plans. One process.
/// @param read_index  null: the program has no --index
void print_plan(const CommandLine& line, ReadIndex read_index);

/// What a simulation writes besides what it prints.
class SimulationFiles {
 public:
  virtual ~SimulationFiles() = default;
  /// Returns an observer of the next step.
  virtual simulate::Observer observe(std::int64_t step) = 0;
  /// @throws Error(data), e.g. if the disk is full
  virtual void write(const SimulatedStep& step, const StepMetrics& metrics) = 0;
  virtual void print_places() const = 0;
  virtual std::string path() const = 0;  ///< of the folder
};
/// @return null: nothing is written. @throws Error(usage, data)
using MakeSimulationFiles = std::unique_ptr<SimulationFiles> (*)(const Simulation& simulation,
                                                                 const CommandLine& line,
                                                                 std::int64_t steps);

/// Simulates an experiment's steps. One process.
/// @param make_files  null: the program has no --output
void simulate(const CommandLine& line, MakeSimulationFiles make_files);

/// Answers what to run for a model on a cluster (advise/advice.hpp). One process.
void advise(const CommandLine& line);

/// Makes the process safe to fail, parses its command line and sets up logging. @return nothing if
/// there is nothing to run; `exit_code` is then the program's
std::optional<CommandLine> begin_program(int argc, char** argv, const Program& program,
                                         int& exit_code);

/// Runs a command without ranks, on the launcher's rank 0. @return exit code
int in_one_process(const std::function<void()>& command);

/// The program of these commands alone. @return exit code
int run_planner(int argc, char** argv);

}  // namespace cadenza::app
