// SPDX-License-Identifier: Apache-2.0
#include "cadenza/storage/place.hpp"

#include <sys/stat.h>

#include <utility>

#include "cadenza/base/error.hpp"

namespace cadenza::storage {

Place::Place(std::string path) : path_(std::move(path)) {
  struct stat found {};
  if (stat(path_.c_str(), &found) != 0) return;  // inode 0: none has it
  device_ = found.st_dev;
  inode_ = found.st_ino;
}

bool Place::holds() const {
  struct stat found {};
  return stat(path_.c_str(), &found) == 0 && found.st_dev == device_ && found.st_ino == inode_;
}

void Place::require() const {
  if (holds()) return;
  fail(ExitCode::data, "{}: was removed, renamed or replaced while it was written to", path_);
}

}  // namespace cadenza::storage
