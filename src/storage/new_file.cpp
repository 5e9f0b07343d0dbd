// SPDX-License-Identifier: Apache-2.0
#include "cadenza/storage/new_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "cadenza/base/error.hpp"

namespace cadenza::storage {
namespace {

namespace fs = std::filesystem;

/// Waits until a file's bytes, or a folder's entries, have left the system's memory.
void sync_to_disk(const fs::path& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  // Some file systems refuse to sync a folder (EINVAL): they order its entries themselves.
  const bool done = descriptor >= 0 && (fsync(descriptor) == 0 || errno == EINVAL);
  const int reason = errno;
  if (descriptor >= 0) close(descriptor);
  if (!done) {
    fail(ExitCode::data, "{}: cannot be written: {}", path.string(), std::strerror(reason));
  }
}

}  // namespace

NewFile::NewFile(std::string path, Protection protection)
    : path_(std::move(path)), partial_(path_ + std::string(kPartial)) {
  file_ = File::create(partial_, protection);
}

NewFile::~NewFile() {
  if (!file_) return;
  file_.reset();
  std::error_code ignored;  // the failure that led here counts
  fs::remove(partial_, ignored);
}

void NewFile::finish() {
  file_->close();
  sync_to_disk(partial_);
  std::error_code error;
  fs::rename(partial_, path_, error);
  if (error) fail(ExitCode::data, "{}: cannot be written: {}", path_, error.message());
  file_.reset();
  sync_to_disk(fs::absolute(path_).parent_path());
}

}  // namespace cadenza::storage
