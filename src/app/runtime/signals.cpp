// SPDX-License-Identifier: Apache-2.0
#include "app/runtime/signals.hpp"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <ctime>

namespace cadenza::app {
namespace {

constexpr int kRequeue = 85;
constexpr std::int64_t kSameSignalNs = 1'000'000'000;

struct Watched {
  int number;
  const char* name;
  std::atomic<std::int64_t> came_ns{0};  ///< 0: not yet
  struct sigaction before {};
};
std::array<Watched, 3> watched{{{SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGUSR1, "SIGUSR1"}}};
std::atomic<int> first{0};

/// Stack of the signal handler. oneDNN's generated code keeps values further below its stack
/// pointer than the 128 bytes that a signal leaves intact, so a handler on the same stack made it
/// write anywhere. The stack is the main thread's, to which Linux delivers a process's signals as
/// long as it does not block them.
alignas(64) std::array<std::byte, 64 * 1024> signal_stack;
stack_t stack_before{};
static_assert(std::atomic<std::int64_t>::is_always_lock_free &&
                  std::atomic<int>::is_always_lock_free,
              "a signal handler may use no lock");

/// Notes a signal. Uses only atomics and what POSIX allows in a handler.
void note(int number) {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const std::int64_t now = std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  for (Watched& signal : watched) {
    if (signal.number != number) continue;
    std::int64_t came = 0;
    if (signal.came_ns.compare_exchange_strong(came, now)) {
      int none = 0;
      first.compare_exchange_strong(none, number);
    } else if (now - came >= kSameSignalNs) {
      std::signal(number, SIG_DFL);
      std::raise(number);
    }
  }
}

}  // namespace

StopSignals::StopSignals() {
  first = 0;
  stack_t stack{};
  stack.ss_sp = signal_stack.data();
  stack.ss_size = signal_stack.size();
  sigaltstack(&stack, &stack_before);
  for (Watched& signal : watched) {
    signal.came_ns = 0;
    struct sigaction action {};
    action.sa_handler = note;
    action.sa_flags = SA_ONSTACK | SA_RESTART;  // file operations that wait continue
    sigaction(signal.number, &action, &signal.before);
  }
}

StopSignals::~StopSignals() {
  if (first != 0) return;  // the process is about to exit: another signal must not change how
  for (const Watched& signal : watched) sigaction(signal.number, &signal.before, nullptr);
  sigaltstack(&stack_before, nullptr);
}

int StopSignals::caught() {
  return first;
}

std::string signal_name(int signal) {
  for (const Watched& known : watched) {
    if (known.number == signal) return known.name;
  }
  return fmt::format("signal {}", signal);
}

int exit_code_of(int signal) {
  if (signal == 0) return 0;
  return signal == SIGUSR1 ? kRequeue : 128 + signal;
}

}  // namespace cadenza::app
