// SPDX-License-Identifier: Apache-2.0
// A path to what this process writes: noticed when it is removed, renamed or replaced meanwhile.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace cadenza::storage {

class Place {
 public:
  /// The file or folder that `path` leads to now.
  explicit Place(const std::string& path);
  /// Whether it still does.
  bool holds() const { return way_.back().holds(); }
  /// @throws Error(data) unless it does, which names the first folder of the path that is gone, if
  /// there is one: who loses a folder is not told of a file in it
  void require() const;
  const std::string& path() const { return way_.back().path; }

 private:
  struct Node {
    std::string path;
    dev_t device = 0;
    ino_t inode = 0;  ///< 0: there was none

    bool holds() const;
  };
  std::vector<Node> way_;  ///< the folders of the path, the outermost first, and itself
};

}  // namespace cadenza::storage
