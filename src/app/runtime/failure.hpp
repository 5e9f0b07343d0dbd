// SPDX-License-Identifier: Apache-2.0
// The end of a command that fails on one of several ranks.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <string>

#include "app/planner/failure.hpp"
#include "cadenza/comm/communicator.hpp"

namespace cadenza::app {

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
