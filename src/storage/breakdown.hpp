// SPDX-License-Identifier: Apache-2.0
// Protection from HDF5 1.10, which follows unchecked addresses in damaged files and crashes.
#pragma once

#include <string>

namespace cadenza::storage {

/// While it lives, SIGSEGV, SIGBUS, SIGFPE and SIGABRT of this thread end the process like any
/// unreadable file: with one line that names the file and exit code 3. Those of other threads are
/// handled as before.
class Reading {
 public:
  explicit Reading(const std::string& path);
  ~Reading();
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  std::string complaint_;
  const char* before_;  ///< complaint of the enclosing Reading, as they nest
};

}  // namespace cadenza::storage
