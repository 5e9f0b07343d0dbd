// SPDX-License-Identifier: Apache-2.0
#include <spdlog/spdlog.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <system_error>

#include "app/command_line.hpp"
#include "app/runtime/failure.hpp"
#include "app/runtime/signals.hpp"
#include "app/runtime/terminal.hpp"
#include "app/runtime/version.hpp"

namespace cadenza::app {
namespace {

/// Runs a command without ranks and without MPI, on the launcher's rank 0.
int in_one_process(const CommandLine& line, void (*command)(const CommandLine&)) {
  if (comm::launcher_rank() != 0) return 0;
  try {
    command(line);
    if (std::fflush(stdout) != 0) throw std::system_error(errno, std::generic_category());
  } catch (...) {
    const Failure failure = current_failure();
    print_error(failure.message);
    return static_cast<int>(failure.code);
  }
  return 0;
}

}  // namespace

// Runs cadenza. First the process is made safe to fail: a file that outgrows its limit becomes an
// error, and uncaught exceptions become one line and an exit code. Then the command line is parsed,
// which ends here with help or an error, and logging is set up. plan, simulate, sweep and train
// --dry-run need no ranks: they run in one process without MPI. attend, calibrate, evaluate and
// train run in a session on all ranks, which starts MPI, then threads and Kokkos, and turns errors
// into exit codes (runtime/failure.hpp). train and evaluate also catch the signals that ask them to
// stop, so that they can end after a step; their exit code tells a batch system to requeue the job.
int run(int argc, char** argv) {
  // A file that outgrows its limit should be an error that names the file, not kill the process.
  std::signal(SIGXFSZ, SIG_IGN);
  end_on_uncaught();
  int exit_code = 0;
  const auto line = parse_command_line(argc, argv, exit_code);
  if (!line) return exit_code;
  // Results that programs read have standard output to themselves.
  set_up_logging(line->detail, comm::launcher_rank() == 0,
                 line->format == "table" ? stdout : stderr);
  spdlog::debug("cadenza {} ({}): {}", kVersion, revision(), kBuild);
  switch (line->command) {
    case Command::plan:
      return in_one_process(*line, print_plan);
    case Command::simulate:
      return in_one_process(*line, simulate);
    case Command::sweep:
      return in_one_process(*line, sweep);
    case Command::attend:
      return in_session(argc, argv, [&](comm::Communicator& world) { attend(world, *line); });
    case Command::calibrate:
      return in_session(argc, argv, [&](comm::Communicator& world) { calibrate(world, *line); });
    case Command::evaluate:
    case Command::train:
      break;
  }
  if (line->dry_run) return in_one_process(*line, dry_run);
  const auto command = line->command == Command::train ? train : evaluate;
  const StopSignals signals;  // before MPI starts: a signal in between must not end the rank
  const int failed =
      in_session(argc, argv, [&](comm::Communicator& world) { exit_code = command(world, *line); });
  return failed != 0 ? failed : exit_code;
}

}  // namespace cadenza::app
