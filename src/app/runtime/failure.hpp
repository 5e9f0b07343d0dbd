// SPDX-License-Identifier: Apache-2.0
// The end of a command that fails: an exit code and one line, also if only one of several ranks
// fails.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <string>

#include "cadenza/base/error.hpp"
#include "cadenza/comm/communicator.hpp"

namespace cadenza::app {

struct Failure {
  ExitCode code = ExitCode::internal;
  std::string message;
};

/// Describes the exception being handled to the user. Call it in a catch clause.
Failure current_failure();

/// Prints one line to standard error: escapes control characters in `message` and cuts it after a
/// few screens.
void print_error(const std::string& message);

/// Makes uncaught exceptions (in a thread, or where nothing may be thrown) end the process like
/// other errors: one line and ExitCode::internal.
void end_on_uncaught();

// --- Errors on several ranks ---
// All ranks attempt together what may fail on one: so all learn of it and end, and the user reads
// it once.

/// An error that every rank of the world has.
class CollectiveError : public Error {
 public:
  using Error::Error;
};

/// Runs `attempt` on every rank. If it throws on any, all throw CollectiveError with the code and
/// message of the first such rank. Collective; `attempt` must not call collectives.
void collectively(comm::Communicator& world, const std::function<void()>& attempt);

/// Runs `attempt`. On a device, an error of this rank alone ends the whole job here, before device
/// memory is released: a release would wait for kernels, which may wait for other ranks. On a host,
/// the error is thrown as usual.
void ending_the_job(comm::Communicator& world, const std::function<void()>& attempt);

/// Runs `body` in a parallel session: MPI, then threads and Kokkos, undone in reverse order. Rank 0
/// reports the threads of the ranks. Rank 0 prints a CollectiveError; any other error is printed by
/// its rank, which ends the whole job. @return exit code
int in_session(int argc, char** argv, const std::function<void(comm::Communicator&)>& body);

}  // namespace cadenza::app
