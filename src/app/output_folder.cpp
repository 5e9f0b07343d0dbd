// SPDX-License-Identifier: Apache-2.0
#include "app/output_folder.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "cadenza/base/error.hpp"

namespace cadenza::app {
namespace {

namespace fs = std::filesystem;

/// With `/` a run would spread over the system, and no later one could rename it.
void refuse_root(const std::string& path) {
  std::error_code unseen;  // what is not there is another folder
  if (!fs::equivalent(path, "/", unseen)) return;
  fail(ExitCode::data, "{}: is the root folder of the system; valid: --output with another folder",
       path);
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error) return;
  fail(ExitCode::data, "{}: cannot be made: {}; valid: --output with a writable folder", path,
       error.message());
}

int open_lock(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file < 0 && errno != ENOENT) {
    fail(ExitCode::data, "{}: cannot be written: {}; valid: --output with a writable folder", path,
         std::strerror(errno));
  }
  return file;
}

/// Who says in the lock's file that it has the lock. Closes it.
std::string holder(int file) {
  std::array<char, 256> text{};
  const ssize_t bytes = pread(file, text.data(), text.size() - 1, 0);
  close(file);
  return bytes > 0 ? text.data() : "another process";
}

/// A link may lead anywhere; a pipe keeps waiting who opens it. /dev/null and its like do neither.
void require_file(const fs::directory_entry& entry) {
  std::error_code error;
  if (entry.is_symlink(error)) {
    fail(ExitCode::data, "{}: is a link to {}; valid: an output folder without links",
         entry.path().string(), fs::read_symlink(entry.path(), error).string());
  }
  if (!fs::is_other(entry.symlink_status(error)) || entry.is_character_file(error)) return;
  fail(ExitCode::data, "{}: is a pipe, a socket or a device; valid: an output folder of files",
       entry.path().string());
}

}  // namespace

std::string OutputFolder::lock_of(const std::string& folder) {
  return folder + "/.lock";
}

OutputFolder::OutputFolder(const std::string& path) : place_(path) {
  refuse_root(path);
  do {
    make_folder(place_.path());
    place_ = storage::Place(place_.path());
  } while (!lock());
  sign();
}

bool OutputFolder::lock() {
  const std::string& folder = place_.path();
  file_ = open_lock(lock_of(folder));
  if (file_ < 0) return false;  // who renamed the folder just now does not work in it any more
  if (flock(file_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      const std::string who = holder(std::exchange(file_, -1));
      fail(ExitCode::data, "{}: in use by {}; valid: another --output, or wait until it ends",
           folder, who);
    }
    spdlog::warn(
        "warning   {}: its file system has no locks ({}): a second run in this folder "
        "would not be noticed",
        folder, std::strerror(errno));
  }
  struct stat held {
  }, there{};
  const bool same = fstat(file_, &held) == 0 && stat(lock_of(folder).c_str(), &there) == 0 &&
                    held.st_ino == there.st_ino && held.st_dev == there.st_dev;
  if (!same) close(std::exchange(file_, -1));
  return same;
}

void OutputFolder::sign() const {
  std::array<char, 128> host{};
  gethostname(host.data(), host.size() - 1);
  const std::string text = fmt::format("process {} on {}", getpid(), host.data());
  const bool written = ftruncate(file_, 0) == 0 && pwrite(file_, text.data(), text.size(), 0) ==
                                                       static_cast<ssize_t>(text.size());
  if (!written) {
    fail(ExitCode::data, "{}: cannot be written: {}", lock_of(path()), std::strerror(errno));
  }
}

OutputFolder::OutputFolder(OutputFolder&& other) noexcept
    : place_(other.place_), file_(std::exchange(other.file_, -1)) {}

OutputFolder& OutputFolder::operator=(OutputFolder&& other) noexcept {
  std::swap(place_, other.place_);
  std::swap(file_, other.file_);
  return *this;
}

OutputFolder::~OutputFolder() {
  if (file_ < 0) return;
  if (place_.holds()) unlink(lock_of(path()).c_str());
  close(file_);
}

void OutputFolder::require_files(std::initializer_list<const char*> names) const {
  for (const char* name : names) {
    const fs::directory_entry entry(fs::path(path()) / name);
    require_file(entry);
    std::error_code error;
    for (fs::directory_iterator below(entry.path(), error), end; !error && below != end;
         below.increment(error)) {
      require_file(*below);
    }
  }
}

}  // namespace cadenza::app
