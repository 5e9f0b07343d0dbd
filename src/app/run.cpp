// SPDX-License-Identifier: Apache-2.0
#include "app/commands.hpp"
#include "app/index_file.hpp"
#include "app/planner/commands.hpp"
#include "app/runtime/failure.hpp"
#include "app/runtime/signals.hpp"
#include "app/simulate/run_files.hpp"

namespace cadenza::app {

// Runs cadenza. plan, simulate, advise, sweep, convert and train --dry-run need no ranks: they run
// in one process without MPI. attend, calibrate, evaluate and train run in a session on all ranks,
// which starts MPI, then threads and Kokkos, and turns errors into exit codes
// (runtime/failure.hpp). train and evaluate also catch the signals that ask them to stop, so that
// they can end after a step; their exit code tells a batch system to requeue the job.
int run(int argc, char** argv) {
  int exit_code = 0;
  const auto line = begin_program(argc, argv, whole_program(), exit_code);
  if (!line) return exit_code;
  switch (line->command) {
    case Command::plan:
      return in_one_process([&] { print_plan(*line, read_index); });
    case Command::simulate:
      return in_one_process([&] { simulate(*line, make_run_files); });
    case Command::advise:
      return in_one_process([&] { advise(*line); });
    case Command::sweep:
      return in_one_process([&] { sweep(*line); });
    case Command::convert:
      return in_one_process([&] { convert(*line); });
    case Command::attend:
      return in_session(argc, argv, [&](comm::Communicator& world) { attend(world, *line); });
    case Command::calibrate:
      return in_session(argc, argv, [&](comm::Communicator& world) { calibrate(world, *line); });
    case Command::evaluate:
    case Command::train:
      break;
  }
  if (line->dry_run) return in_one_process([&] { dry_run(*line); });
  const auto command = line->command == Command::train ? train : evaluate;
  const StopSignals signals;  // before MPI starts: a signal in between must not end the rank
  const int failed =
      in_session(argc, argv, [&](comm::Communicator& world) { exit_code = command(world, *line); });
  return failed != 0 ? failed : exit_code;
}

}  // namespace cadenza::app
