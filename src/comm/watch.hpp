// SPDX-License-Identifier: Apache-2.0
// The watch over waiting ranks: who hangs, what is said of it, and the one place where a process
// waits for others.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cadenza/comm/communicator.hpp"

namespace cadenza::comm {

/// One rank of it.
struct HungRank {
  bool answers = false;
  std::string host;       ///< of one that does not
  std::int64_t pid = 0;   ///< likewise
  std::string waits_for;  ///< of one that does
};

/// One line: who does not answer, and what the others wait for; ranks that wait for the same
/// together.
std::string describe_hang(double seconds, std::span<const HungRank> ranks);

// The one place where a process waits for others, and the watch over it: when nothing has completed
// on any rank for run.timeout seconds, the job ends and says who does not answer.
//
// A rank whose wait lasts asks the others. Who waits answers how long its wait has lasted and what
// it waits for; who computes answers between its operations and, within attention, from the
// kernels' progress hook, that it does not wait; who is stopped, or in an operation that does not
// end, does not answer. The lowest of the ranks that answer speaks, so that it is said once.

/// Of all communicators that were split from one world. Used by the thread that may call MPI.
class Watch {
 public:
  Watch() = default;
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Collective over all processes.
  /// @param seconds  without a completed operation; 0: nothing is watched
  void set_timeout(double seconds);
  void set_activity(Activity activity) { activity_ = std::move(activity); }
  void set_looked(Looked looked) { looked_by_ = std::move(looked); }
  void set_background(std::function<void()> work) { background_ = std::move(work); }

  /// Polls `done` until it is true. MPI's own calls decide whether a poll gives up the core.
  /// @param call  what is waited for; a literal
  /// @throws Error(communication) when nothing goes on any more, on the rank that says so
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

  /// Runs `action`, a call of MPI that cannot be polled. The process ends when it does not end.
  /// @param what  of Deadline
  template <typename Action>
  void bounded(const char* what, const Action& action) const {
    const Deadline deadline(what, timeout_, rank_);
    action();
  }

  /// Lets MPI move on, and answers who asks.
  void progress();

 private:
  using Clock = std::chrono::steady_clock;

  /// A question is idle < 0.
  struct Message {
    double idle = -1;     ///< seconds that the sender's wait has lasted; 0: it does not wait
    char text[248] = {};  ///< what it waits for
  };
  struct Sent {
    MPI_Request request = MPI_REQUEST_NULL;
    Message message;
  };
  struct Peer {
    std::string host;
    std::int64_t pid = 0;
    // Seconds of this rank's wait:
    double asked = -1;  ///< when it was asked what it has not answered; -1: it has
    double heard = 0;   ///< when it last completed something, as far as it has said
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
  MPI_Comm comm_ = MPI_COMM_NULL;  ///< of the watch alone: its messages meet no others
  int rank_ = 0;
  std::vector<Peer> peers_;  ///< by rank
  MPI_Request expected_ = MPI_REQUEST_NULL;
  Message incoming_;
  std::list<Sent> sent_;  ///< may still be on their way

  // This rank's wait; its seconds are those in which the process ran.
  const char* call_ = nullptr;  ///< null: it does not wait
  Clock::time_point began_, served_;
  double waited_ = 0;
  double ask_at_ = 0;
  bool asked_ = false;
  std::string verdict_;  ///< once it was said, nobody is waited for again
};

}  // namespace cadenza::comm
