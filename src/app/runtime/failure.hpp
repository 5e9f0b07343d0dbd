// SPDX-License-Identifier: Apache-2.0
// How a command ends when it fails: an exit code and one line, also where the error is that of one
// rank of several.
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

/// What the exception that is being handled means to the user. To be called in a catch clause.
Failure current_failure();

/// One line on standard error, whatever `message` quotes: control characters are escaped, and what
/// is longer than a few screens is cut.
void print_error(const std::string& message);

/// Whatever no one catches, in a thread or where nothing may be thrown, ends the process as other
/// errors do: one line and ExitCode::internal.
void end_on_uncaught();

// Errors on several ranks: what can fail on one rank alone is tried by all together, so that all of
// them learn of it and end, and the user reads it once.

/// An error that every rank of the world holds.
class CollectiveError : public Error {
 public:
  using Error::Error;
};

/// Runs `attempt` on every rank. If it throws on any of them, all throw CollectiveError with the
/// code and message of the first such rank. Collective; `attempt` makes no collective calls itself.
void collectively(comm::Communicator& world, const std::function<void()>& attempt);

/// Runs `attempt`. On a device, what fails on this rank alone ends the whole job here, before the
/// device's memory is given back: that would wait for kernels which may wait for other ranks. On a
/// host, it is thrown as ever.
void ending_the_job(comm::Communicator& world, const std::function<void()>& attempt);

/// Runs `body` in a parallel session: MPI, then threads and Kokkos, undone in reverse. Rank 0 says
/// what threads the ranks have. @return the exit code.
/// An CollectiveError is printed by rank 0; any other error is printed by its rank, which ends the
/// whole job.
int in_session(int argc, char** argv, const std::function<void(comm::Communicator&)>& body);

}  // namespace cadenza::app
