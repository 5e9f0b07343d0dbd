// SPDX-License-Identifier: Apache-2.0
// A path to what this process writes: noticed when it is removed, renamed or replaced meanwhile.
#pragma once

#include <sys/types.h>

#include <string>

namespace cadenza::storage {

class Place {
 public:
  /// The file or folder that `path` leads to now.
  explicit Place(std::string path);
  /// Whether it still does.
  bool holds() const;
  /// @throws Error(data) unless it does
  void require() const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace cadenza::storage
