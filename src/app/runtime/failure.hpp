// SPDX-License-Identifier: Apache-2.0
// How a command ends when it fails: an exit code and one line.
#pragma once

#include <string>

#include "cadenza/base/error.hpp"

namespace cadenza::app {

struct Failure {
  ExitCode code = ExitCode::internal;
  std::string message;
};

/// What the exception that is being handled means to the user. To be called in a catch clause.
Failure current_failure();

/// One line on standard error, whatever `message` quotes: control characters are escaped, and what
/// is longer than a few screens is cut.
void print_error(const std::string& message);

/// Whatever no one catches, in a thread or where nothing may be thrown, ends the process as other
/// errors do: one line and ExitCode::internal.
void end_on_uncaught();

}  // namespace cadenza::app
