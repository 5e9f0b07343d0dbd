// SPDX-License-Identifier: Apache-2.0
// Signals that ask a run to end after its step: SIGTERM, SIGINT (Ctrl-C), and SIGUSR1, which a
// batch system sends before a time limit.
#pragma once

#include <string>

namespace cadenza::app {

/// Catches these signals while it lives; one object at a time. The same signal again, after a
/// second or more, has its default effect: launchers deliver one more than once.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Returns the first signal caught; 0: none.
  static int caught();
};

/// Returns its name: "SIGUSR1".
std::string signal_name(int signal);

/// Returns the exit code of a run that a signal ended: 85 ("requeue me") after SIGUSR1, 128 + its
/// number after any other, 0 for none.
int exit_code_of(int signal);

}  // namespace cadenza::app
