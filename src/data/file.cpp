// SPDX-License-Identifier: Apache-2.0
#include "data/file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "cadenza/base/error.hpp"

namespace cadenza::data {
namespace {

std::string reason(int code) {
  return std::generic_category().message(code);
}

}  // namespace

std::int64_t file_size(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    fail(ExitCode::data, "data.path: cannot read '{}': {}", path, reason(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    fail(ExitCode::data, "data.path: '{}' is not a regular file", path);
  }
  return status.st_size;
}

void check_size(const std::string& path, std::int64_t expected) {
  const std::int64_t found = file_size(path);
  if (found == expected) return;
  fail(ExitCode::data,
       "data.path: '{}' changed while it was in use: it held {} bytes when the run began and holds "
       "{} now",
       path, expected, found);
}

File::File(const std::string& path)
    : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) {
    fail(ExitCode::data, "data.path: cannot read '{}': {}", path, reason(errno));
  }
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

std::int64_t File::size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) {
    fail(ExitCode::data, "data.path: cannot read '{}': {}", path_, reason(errno));
  }
  return status.st_size;
}

void File::read(std::int64_t offset, std::span<unsigned char> out) const {
  while (!out.empty()) {
    const ::ssize_t count = ::pread(descriptor_, out.data(), out.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(ExitCode::data, "data.path: cannot read '{}': {}", path_, reason(errno));
    if (count == 0) {
      fail(ExitCode::data, "data.path: '{}' changed while it was in use: it ends at byte {}", path_,
           offset);
    }
    offset += count;
    out = out.subspan(static_cast<std::size_t>(count));
  }
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const File file(path);
  const auto size = static_cast<std::size_t>(file.size());
  if (size == 0) return;  // a mapping of zero bytes is an error for mmap
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (address == MAP_FAILED) {
    fail(ExitCode::data, "data.path: cannot map '{}': {}", path, reason(errno));
  }
  bytes_ = {static_cast<const unsigned char*>(address), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<unsigned char*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

}  // namespace cadenza::data
