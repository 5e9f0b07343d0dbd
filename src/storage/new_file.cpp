// SPDX-License-Identifier: Apache-2.0
#include "cadenza/storage/new_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "cadenza/base/error.hpp"

namespace cadenza::storage {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_to_write(const std::string& path, const std::string& reason) {
  fail(ExitCode::data, "{}: cannot be written: {}", path, reason);
}

}  // namespace

Lock::Lock(const std::string& path)
    : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) {
  if (descriptor_ < 0 || flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  const int reason = errno;
  close(descriptor_);
  if (reason == EWOULDBLOCK) fail_to_write(path, "another process is writing it");
  descriptor_ = -1;  // a file system without locks
}

Lock::~Lock() {
  if (descriptor_ >= 0) close(descriptor_);
}

namespace {

/// The partial path of a file, after removing a leftover there. HDF5 locks what it writes.
std::string partial_of(const std::string& path) {
  std::string partial = path + std::string(kPartial);
  const Lock unused(partial);
  std::error_code error;  // ignored: creating the file reports it
  if (!fs::is_directory(fs::symlink_status(partial, error))) fs::remove(partial, error);
  return partial;
}

void give_name(const std::string& partial, const std::string& path) {
  sync_to_disk(partial);
  std::error_code error;
  fs::rename(partial, path, error);
  if (error) fail_to_write(path, error.message());
  sync_to_disk(fs::absolute(path).parent_path().string());
}

}  // namespace

void sync_to_disk(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  // Some file systems refuse to sync a folder (EINVAL): they order its entries themselves.
  const bool done = descriptor >= 0 && (fsync(descriptor) == 0 || errno == EINVAL);
  const int reason = errno;
  if (descriptor >= 0) close(descriptor);
  if (!done) fail_to_write(path, std::strerror(reason));
}

NewFile::NewFile(std::string path, Protection protection)
    : path_(std::move(path)), partial_(partial_of(path_)) {
  file_ = File::create(partial_, protection);
}

NewFile::~NewFile() {
  if (!file_) return;
  file_.reset();
  std::error_code ignored;  // an earlier failure is being reported
  fs::remove(partial_, ignored);
}

void NewFile::finish() {
  file_->close();
  give_name(partial_, path_);
  file_.reset();
}

void write_whole(const std::string& path, std::string_view text) {
  const std::string partial = partial_of(path);
  errno = 0;
  std::ofstream file(partial, std::ios::binary);
  file << text;
  file.close();
  if (!file) {
    const std::string reason = std::strerror(errno);
    std::error_code ignored;
    fs::remove(partial, ignored);
    fail_to_write(path, reason);
  }
  give_name(partial, path);
}

Place::Place(const std::string& path) {
  namespace fs = std::filesystem;
  for (fs::path at = path;; at = at.parent_path()) {
    struct stat found {};
    if (stat(at.c_str(), &found) != 0) found = {};  // no file has inode 0
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
