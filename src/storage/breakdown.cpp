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

/// What is said if the library fails on the file that is being read.
thread_local const char* complaint_in_use = nullptr;

void handle(int number, siginfo_t*, void*) {
  if (complaint_in_use != nullptr) {
    // One call, which is safe in a signal handler: lines of several ranks do not mix.
    static_cast<void>(!write(STDERR_FILENO, complaint_in_use, std::strlen(complaint_in_use)));
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

Reading::Reading(const std::string& path)
    : complaint_("cadenza: " + path + ": is damaged: the HDF5 library failed on it\n"),
      before_(complaint_in_use) {
  [[maybe_unused]] static const bool installed = install();
  complaint_in_use = complaint_.c_str();
}

Reading::~Reading() {
  complaint_in_use = before_;
}

}  // namespace cadenza::storage
