// SPDX-License-Identifier: Apache-2.0
// The watch over waiting ranks: finds a hang, describes it, and is the one place where a process
// waits for others.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cadenza/base/error.hpp"
#include "cadenza/comm/communicator.hpp"

namespace cadenza::comm {

/// @throws Error(communication) unless the MPI call succeeded
inline void check(int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(result, text, &length);
  fail(ExitCode::communication, "{} failed: {}", call,
       std::string_view(text, static_cast<std::size_t>(length)));
}

/// One rank of a hang.
struct HungRank {
  bool answers = false;
  std::string host;       ///< of a rank that does not answer
  std::int64_t pid = 0;   ///< of a rank that does not answer
  std::string waits_for;  ///< of a rank that answers
};

/// Describes a hang in one line: the ranks that do not answer, and what the others wait for,
/// grouped by what they wait for.
std::string describe_hang(double seconds, std::span<const HungRank> ranks);

// --- The watch ---
// When nothing has completed on any rank for run.timeout seconds, the job ends and names the ranks
// that do not answer.
//
// A rank whose wait lasts long asks the others. A waiting rank answers how long it has waited, and
// for what. A computing rank answers, between operations and within attention from the kernels'
// progress hook, that it does not wait. A rank that is stopped, or in an operation that does not
// end, does not answer. The lowest rank that answers reports, so that there is one report.

/// Shared by all communicators split from one world. Used by the thread that may call MPI.
class Watch {
 public:
  Watch() = default;
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Sets the limit. Collective over all processes.
  /// @param seconds  without a completed operation; 0: no watch
  void set_timeout(double seconds);
  void set_activity(Activity activity) { activity_ = std::move(activity); }
  void set_looked(Looked looked) { looked_by_ = std::move(looked); }
  void set_background(std::function<void()> work) { background_ = std::move(work); }

  /// Polls `done` until it returns true. MPI's own calls decide whether a poll yields the core.
  /// @param call  names the awaited call; a literal
  template <typename Done>
  void until(const char* call, const Done& done) {
    look();
    if (done()) return;
    begin_wait(call);
    try {
      while (!done()) look();
    } catch (...) {
      call_ = nullptr;
      throw;
    }
    call_ = nullptr;
  }

  /// Runs `action`, an MPI call that cannot be polled; if it does not end, the process does.
  /// @param what  for Deadline
  template <typename Action>
  void bounded(const char* what, const Action& action) const {
    const Deadline deadline(what, timeout_, rank_);
    action();
  }

  /// Lets MPI make progress and answers ranks that ask.
  void progress();

 private:
  using Clock = std::chrono::steady_clock;

  /// A question if idle < 0, otherwise an answer.
  struct Message {
    double idle = -1;     ///< seconds that the sender's wait has lasted; 0: it does not wait
    char text[248] = {};  ///< what the sender waits for
  };
  struct Sent {
    MPI_Request request = MPI_REQUEST_NULL;
    Message message;
  };
  struct Peer {
    std::string host;
    std::int64_t pid = 0;
    // In seconds of this rank's wait:
    double asked = -1;  ///< time of the question that the peer has not answered; -1: none
    double heard = 0;   ///< last time at which it completed something, according to its answers
    std::string waits_for;
  };

  bool is_on() const { return timeout_ > 0; }
  void start();
  void begin_wait(const char* call);
  void look() {
    constexpr auto kServeEvery = std::chrono::milliseconds(10);
    if (background_) background_();
    if (!is_on() && !looked_by_) return;
    const Clock::time_point now = Clock::now();
    if (looked_by_) looked_by_(now.time_since_epoch() / std::chrono::nanoseconds(1));
    if (is_on() && now - served_ >= kServeEvery) look_after_others(now);
  }
  void look_after_others(Clock::time_point now);
  void serve();
  void expect();
  void take(int from, const Message& message);
  void send(int to, const Message& message);
  void ask();
  bool nothing_goes_on() const;
  std::string verdict() const;
  std::string waits_for() const;

  double timeout_ = 0;
  Activity activity_;
  Looked looked_by_;
  std::function<void()> background_;
  MPI_Comm comm_ = MPI_COMM_NULL;  ///< the watch's own, so that its messages meet no others
  int rank_ = 0;
  std::vector<Peer> peers_;  ///< by rank
  MPI_Request expected_ = MPI_REQUEST_NULL;
  Message incoming_;
  std::list<Sent> sent_;  ///< may still be under way

  // This rank's wait; counts only seconds in which the process ran.
  const char* call_ = nullptr;  ///< null: this rank does not wait
  Clock::time_point began_, served_;
  double waited_ = 0;
  double ask_at_ = 0;
  bool asked_ = false;
  std::string verdict_;  ///< once set, nobody is awaited again
};

}  // namespace cadenza::comm
