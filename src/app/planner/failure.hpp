// SPDX-License-Identifier: Apache-2.0
// The end of a command that fails: an exit code and one line.
#pragma once

#include <string>

#include "cadenza/base/error.hpp"

namespace cadenza::app {

struct Failure {
  ExitCode code = ExitCode::internal;
  std::string message;
};

/// Describes the exception being handled to the user. Call it in a catch clause.
Failure current_failure();

/// Prints one line to standard error: escapes control characters in `message` and cuts it after a
/// few screens.
void print_error(const std::string& message);

/// Makes uncaught exceptions (in a thread, or where nothing may be thrown) end the process like
/// other errors: one line and ExitCode::internal.
void end_on_uncaught();

}  // namespace cadenza::app
