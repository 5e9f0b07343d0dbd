// SPDX-License-Identifier: Apache-2.0
#include "storage/breakdown.hpp"

#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>

#include "cadenza/base/error.hpp"

namespace cadenza::storage {
namespace {

constexpr std::array kSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGABRT};
std::array<struct sigaction, kSignals.size()> earlier;

thread_local const char* path_in_use = nullptr;

/// Writes a text to stderr by calls that are safe in a signal handler.
void say(const char* text) {
  static_cast<void>(!write(STDERR_FILENO, text, std::strlen(text)));
}

void handle(int number, siginfo_t*, void*) {
  if (path_in_use != nullptr) {
    say("cadenza: ");
    say(path_in_use);
    say(": is damaged: the HDF5 library failed on it\n");
    _exit(static_cast<int>(ExitCode::data));
  }
  // The instruction runs again and faults under the earlier handler.
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    if (kSignals[i] == number) sigaction(number, &earlier[i], nullptr);
  }
}

/// Gives handlers a stack of their own, as endless recursion leaves no room on the normal one.
void give_handlers_a_stack() {
  alignas(16) static std::array<char, 1 << 16> stack;
  const stack_t place{stack.data(), 0, stack.size()};
  stack_t found{};
  if (sigaltstack(nullptr, &found) == 0 && (found.ss_flags & SS_DISABLE) != 0) {
    sigaltstack(&place, nullptr);
  }
}

bool install() {
  give_handlers_a_stack();
  struct sigaction action {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &earlier[i]);
  return true;
}

}  // namespace

Reading::Reading(const std::string& path) : before_(path_in_use) {
  [[maybe_unused]] static const bool installed = install();
  path_in_use = path.c_str();
}

Reading::~Reading() {
  path_in_use = before_;
}

}  // namespace cadenza::storage
