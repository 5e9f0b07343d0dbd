// SPDX-License-Identifier: Apache-2.0
#include "cadenza/storage/place.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "cadenza/base/error.hpp"

namespace cadenza::storage {

Place::Place(const std::string& path) {
  namespace fs = std::filesystem;
  for (fs::path at = path;; at = at.parent_path()) {
    struct stat found {};
    if (stat(at.c_str(), &found) != 0) found = {};  // inode 0: none has it
    way_.insert(way_.begin(), {at.string(), found.st_dev, found.st_ino});
    if (at.parent_path().empty() || at.parent_path() == at) break;
  }
}

bool Place::Node::holds() const {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 && found.st_dev == device && found.st_ino == inode;
}

void Place::require() const {
  if (holds()) return;
  const auto gone = std::ranges::find_if_not(way_, &Node::holds);
  fail(ExitCode::data, "{}: was removed, renamed or replaced while it was written to",
       gone == way_.end() ? path() : gone->path);
}

}  // namespace cadenza::storage
