// SPDX-License-Identifier: Apache-2.0
// Signals that ask a run to end its step and go: SIGTERM, SIGINT (Ctrl-C), and SIGUSR1, which a
// batch system sends ahead of a time limit.
#pragma once

#include <string>

namespace cadenza::app {

/// Notes them as long as it lives; one object at a time. The same signal again, a
/// second or more later, acts as it would without: launchers deliver one more than once.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The first of them that came; 0: none yet.
  static int caught();
};

/// "SIGUSR1".
std::string signal_name(int signal);

/// What a run that a signal ended exits with: 85 ("requeue me") after SIGUSR1, 128 + its number
/// after any other, 0 for none.
int exit_code_of(int signal);

}  // namespace cadenza::app
