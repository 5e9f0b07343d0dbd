// SPDX-License-Identifier: Apache-2.0
// A folder that a command writes into, alone.
#pragma once

#include <initializer_list>
#include <string>

#include "cadenza/storage/place.hpp"

namespace cadenza::app {

/// Made where there is none, and locked as long as the object lives. The kernel ends the lock with
/// the process, however that ends; the file .lock in the folder, which carries it, says who has it.
/// Where the file system has no locks, a warning says so.
class OutputFolder {
 public:
  /// @throws Error(data) where it cannot be made, or another process writes into it
  explicit OutputFolder(const std::string& path);
  ~OutputFolder();
  OutputFolder(OutputFolder&& other) noexcept;
  OutputFolder& operator=(OutputFolder&& other) noexcept;

  const std::string& path() const { return place_.path(); }
  static std::string lock_of(const std::string& folder);  ///< path of the file
  /// @param names  files and folders of it that will be written, the latter with what is in them
  /// @throws Error(data) where one of them is there and neither: a link, a pipe, a device
  void require_files(std::initializer_list<const char*> names) const;
  /// @throws Error(data) when the folder was removed, renamed or replaced
  void require() const { place_.require(); }

 private:
  /// @return whether the folder is this process's
  bool lock();
  void sign() const;

  storage::Place place_;
  int file_ = -1;
};

}  // namespace cadenza::app
