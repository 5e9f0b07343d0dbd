// SPDX-License-Identifier: Apache-2.0
// The one error path: code throws Error, main() prints one line and every rank ends with its code.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace cadenza {

/// Exit codes of the program (a contract with scripts; see README).
enum class ExitCode : int {
  ok = 0,
  internal = 1,       ///< out of memory, or a fault of the program
  usage = 2,          ///< command line or experiment
  data = 3,           ///< corpus, input or output file
  numerics = 4,       ///< non-finite loss or attention, or a calibration that is too noisy
  communication = 5,  ///< transport, or ranks that disagree
};

/// An error with an exit code. Its message is one line that names the file and line or the key,
/// what was found and what is valid.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// Throws Error with a formatted message.
template <typename... Args>
[[noreturn]] void fail(ExitCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace cadenza
