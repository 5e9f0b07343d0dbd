// SPDX-License-Identifier: Apache-2.0
#include "cadenza/comm/deadline.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "cadenza/base/error.hpp"

namespace cadenza::comm {

Deadline::Deadline(const char* what, double seconds, int rank) {
  if (seconds > 0)
    thread_ = std::thread([this, what, seconds, rank] { watch(what, seconds, rank); });
}

Deadline::~Deadline() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  ended_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Deadline::watch(const char* what, double seconds, int rank) {
  // Pieces of time, so that one in which this process was stopped itself does not count; later
  // ranks wait a little longer, so that one speaks and the launcher ends the others.
  constexpr double kPiece = 0.05;
  constexpr double kTurn = 0.2;
  constexpr int kTurns = 32;
  std::unique_lock lock(mutex_);
  for (double waited = 0; waited < seconds + kTurn * (rank % kTurns); waited += kPiece) {
    if (ended_.wait_for(lock, std::chrono::duration<double>(kPiece), [this] { return over_; })) {
      return;
    }
  }
  fmt::print(stderr, "cadenza: no operation completed for {:g} s (run.timeout): rank {} waits {}\n",
             seconds, rank, what);
  std::fflush(stderr);
  std::_Exit(static_cast<int>(ExitCode::communication));
}

}  // namespace cadenza::comm
