// SPDX-License-Identifier: Apache-2.0
#include "comm/watch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/comm/communicator.hpp"

namespace cadenza::comm {
namespace {

constexpr int kTag = 0;
constexpr double kQuestions = 10;  // asked within a timeout
/// After a longer time without a poll, this process did not run (a suspended job, say) and could
/// not hear the others.
constexpr double kLongestGap = 1;

/// Host and process id of a rank.
struct ProcessPlace {
  std::array<char, MPI_MAX_PROCESSOR_NAME> host{};
  std::int64_t pid = 0;
};

}  // namespace

Watch::~Watch() {
  // During an exception the job ends by force; freeing is collective.
  if (comm_ == MPI_COMM_NULL || std::uncaught_exceptions() > 0) return;
  MPI_Cancel(&expected_);
  MPI_Wait(&expected_, MPI_STATUS_IGNORE);
  for (Sent& sent : sent_) MPI_Request_free(&sent.request);
  MPI_Comm_free(&comm_);
}

void Watch::set_timeout(double seconds) {
  int size = 1;
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  if (size == 1) return;
  if (seconds > 0 && comm_ == MPI_COMM_NULL) start();
  timeout_ = seconds;
}

void Watch::start() {
  check(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  int size = 1;
  check(MPI_Comm_size(comm_, &size), "MPI_Comm_size");
  ProcessPlace mine;
  int length = 0;
  check(MPI_Get_processor_name(mine.host.data(), &length), "MPI_Get_processor_name");
  mine.pid = getpid();
  std::vector<ProcessPlace> all(static_cast<std::size_t>(size));
  constexpr int kBytes = static_cast<int>(sizeof(ProcessPlace));
  check(MPI_Allgather(&mine, kBytes, MPI_BYTE, all.data(), kBytes, MPI_BYTE, comm_),
        "MPI_Allgather");
  for (const ProcessPlace& place : all) {
    peers_.emplace_back().host = place.host.data();
    peers_.back().pid = place.pid;
  }
  expect();
}

void Watch::progress() {
  if (looked_by_) looked_by_(Clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
  if (is_on()) return serve();
  // A probe that finds nothing lets the MPI library make progress.
  int found = 0;
  check(MPI_Iprobe(0, kTag, MPI_COMM_SELF, &found, MPI_STATUS_IGNORE), "MPI_Iprobe");
}

void Watch::begin_wait(const char* call) {
  if (!verdict_.empty()) throw Error(ExitCode::communication, verdict_);
  call_ = call;
  began_ = Clock::now();
  waited_ = 0;
  asked_ = false;
  ask_at_ = timeout_ / kQuestions * (rank_ == 0 ? 1 : 2);
}

void Watch::look_after_others(Clock::time_point now) {
  const std::chrono::duration<double> gap = now - std::max(served_, began_);
  served_ = now;
  serve();
  if (call_ == nullptr) return;
  waited_ += std::min(gap.count(), kLongestGap);
  if (waited_ >= ask_at_) ask();
  if (!nothing_goes_on()) return;
  verdict_ = verdict();
  throw Error(ExitCode::communication, verdict_);
}

void Watch::expect() {
  check(MPI_Irecv(&incoming_, sizeof(Message), MPI_BYTE, MPI_ANY_SOURCE, kTag, comm_, &expected_),
        "MPI_Irecv");
}

void Watch::serve() {
  for (;;) {
    int done = 0;
    MPI_Status status;
    check(MPI_Test(&expected_, &done, &status), "MPI_Test");
    if (done == 0) break;
    const Message message = incoming_;
    expect();
    take(status.MPI_SOURCE, message);
  }
  while (!sent_.empty()) {
    int done = 0;
    check(MPI_Test(&sent_.front().request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done == 0) break;
    sent_.pop_front();
  }
}

void Watch::take(int from, const Message& message) {
  Peer& peer = peers_[at(from)];
  if (message.idle >= 0) {
    peer.asked = -1;
    peer.heard = waited_ - message.idle;
    peer.waits_for = message.text;
    return;
  }
  if (from < rank_) {  // it is alive and does what this rank would do
    peer.asked = -1;
    peer.heard = waited_;
    ask_at_ = waited_ + 2 * timeout_ / kQuestions;
  }
  Message answer;
  answer.idle = 0;
  if (call_ != nullptr) {
    answer.idle = waited_;
    waits_for().copy(answer.text, sizeof(answer.text) - 1);
  }
  send(from, answer);
}

void Watch::send(int to, const Message& message) {
  Sent& sent = sent_.emplace_back();
  sent.message = message;
  check(MPI_Isend(&sent.message, sizeof(Message), MPI_BYTE, to, kTag, comm_, &sent.request),
        "MPI_Isend");
}

void Watch::ask() {
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    Peer& peer = peers_[at(rank)];
    if (!asked_) {  // the peer's state is of an earlier wait
      peer.asked = -1;
      peer.heard = 0;
    }
    if (rank == rank_) continue;
    if (peer.asked < 0) peer.asked = waited_;
    send(rank, {});
  }
  asked_ = true;
  ask_at_ = waited_ + timeout_ / kQuestions;
}

bool Watch::nothing_goes_on() const {
  if (!asked_ || waited_ < timeout_) return false;
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    const Peer& peer = peers_[at(rank)];
    if (rank == rank_) continue;
    if (rank < rank_ && peer.asked < 0) return false;  // the lower rank will report
    const double last = peer.asked < 0 ? peer.heard : peer.asked;
    if (waited_ - last < timeout_) return false;
  }
  return true;
}

std::string Watch::verdict() const {
  std::vector<HungRank> ranks;
  for (const Peer& peer : peers_) {
    ranks.push_back({peer.asked < 0, peer.host, peer.pid, peer.waits_for});
  }
  HungRank& mine = ranks[at(rank_)];
  mine.answers = true;
  mine.waits_for = waits_for();
  return describe_hang(timeout_, ranks);
}

std::string Watch::waits_for() const {
  const std::string activity = activity_ ? activity_() : std::string();
  return activity.empty() ? call_ : call_ + (" of " + activity);
}

namespace {

constexpr std::size_t kNamed = 8;  // ranks, and groups of them; the others are only counted

/// Formats ranks: "0, 1, 3" or "0, 1, ... (500 ranks)".
std::string list_of(const std::vector<std::size_t>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kNamed); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  }
  return ranks.size() <= kNamed ? text : text + fmt::format(", ... ({} ranks)", ranks.size());
}

std::string silent_ranks(std::span<const HungRank> ranks) {
  std::string text;
  std::size_t silent = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].answers) continue;
    if (++silent > kNamed) continue;
    text += fmt::format("{}rank {} (host {}, process {})", silent == 1 ? "" : ", ", rank,
                        ranks[rank].host, ranks[rank].pid);
  }
  if (silent == 0) return "every rank answers";
  if (silent > kNamed) text += fmt::format(", ... ({} ranks)", silent);
  return text + (silent == 1 ? " does not answer" : " do not answer");
}

}  // namespace

std::string describe_hang(double seconds, std::span<const HungRank> ranks) {
  std::vector<std::pair<std::string, std::vector<std::size_t>>> waiting;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].answers) continue;
    const std::string& what = ranks[rank].waits_for;
    auto group = std::ranges::find(waiting, what, &decltype(waiting)::value_type::first);
    if (group == waiting.end()) group = waiting.insert(group, {what, {}});
    group->second.push_back(rank);
  }
  std::string text = fmt::format("no operation completed for {:g} s (run.timeout): {}", seconds,
                                 silent_ranks(ranks));
  for (std::size_t i = 0; i < std::min(waiting.size(), kNamed); ++i) {
    const auto& [what, group] = waiting[i];
    text += fmt::format("; rank {} {} for {}", list_of(group), group.size() == 1 ? "waits" : "wait",
                        what);
  }
  return text + (waiting.size() > kNamed ? "; ..." : "");
}

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
  // Waits in small pieces, so that time in which this process was stopped does not count. Higher
  // ranks wait a little longer, so that one reports and the launcher ends the others.
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
