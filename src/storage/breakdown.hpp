// SPDX-License-Identifier: Apache-2.0
// HDF5 1.10 breaks down on some damaged files: it follows addresses that it has not checked.
#pragma once

#include <string>

namespace cadenza::storage {

/// While it lives, a segmentation fault of this thread ends the process like any file that cannot
/// be read: one line that names the file, exit code 3. At other times faults are what they were.
class Reading {
 public:
  /// @param path  must outlive the object
  explicit Reading(const std::string& path);
  ~Reading();
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  const char* before_;  ///< calls nest
};

}  // namespace cadenza::storage
