// SPDX-License-Identifier: Apache-2.0
#include "data/file.hpp"

#include <fcntl.h>
#include <fnmatch.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <filesystem>
#include <set>
#include <string_view>
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
  if (size == 0) return;  // mmap refuses to map zero bytes
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

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

namespace {

namespace fs = std::filesystem;

using Files = std::set<std::string>;  // in byte order, each once

bool skipped(std::string_view name) {
  return name.starts_with('.') || name == "__pycache__";
}

bool has_wildcard(std::string_view text) {
  return text.find_first_of("*?[") != text.npos;
}

// Opens a folder. An empty path is the working folder, so that its names have no "./".
fs::directory_iterator open_folder(const fs::path& path) {
  const fs::path folder = path.empty() ? fs::path(".") : path;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  if (error) {
    fail(ExitCode::data, "data.path: cannot read folder '{}': {}", folder.string(),
         error.message());
  }
  return entries;
}

// Whether to enter a folder. Links are not entered, as they may lead back up.
bool is_folder_below(const fs::directory_entry& entry) {
  std::error_code error;
  return !entry.is_symlink(error) && entry.is_directory(error);
}

void add_folder(const fs::path& folder, Files& files) {
  for (const fs::directory_entry& entry : open_folder(folder)) {
    const fs::path name = entry.path().filename();
    if (skipped(name.native())) continue;
    std::error_code error;
    if (is_folder_below(entry)) {
      add_folder(folder / name, files);
    } else if (entry.is_regular_file(error)) {
      files.insert((folder / name).string());
    }
  }
}

void add_existing(const fs::path& path, Files& files) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    add_folder(path, files);
  } else if (fs::is_regular_file(path, error)) {
    files.insert(path.string());
  }
}

bool matches(const std::string& pattern, const std::string& name) {
  if (name == "__pycache__" && pattern != name) return false;
  return ::fnmatch(pattern.c_str(), name.c_str(), FNM_PERIOD | FNM_NOESCAPE) == 0;
}

/// Finds the files that one pattern matches.
class Walk {
 public:
  Walk(const std::string& pattern, Files& files) : pattern_(pattern), files_(files) {
    const fs::path path(pattern);
    parts_.assign(path.begin(), path.end());
    const auto again = std::ranges::unique(
        parts_, [](const fs::path& a, const fs::path& b) { return a == "**" && b == "**"; });
    parts_.erase(again.begin(), again.end());
    // Calls of visit() nest by wildcards.
    const auto wildcards = std::ranges::count_if(
        parts_, [](const fs::path& part) { return has_wildcard(part.native()); });
    if (wildcards > kMostWildcards) {
      fail(ExitCode::data,
           "data.path: found a pattern with wildcards in {} of its names; valid: at most {}",
           wildcards, kMostWildcards);
    }
  }

  void run() { visit({}, 0, false); }

 private:
  // Folders visited behind links, which can give the same folder many names.
  static constexpr std::size_t kMostBehindLinks = 10'000;
  static constexpr std::ptrdiff_t kMostWildcards = 64;

  bool is_literal(std::size_t part) const {
    return part < parts_.size() && !has_wildcard(parts_[part].native());
  }

  /// Walks from folder `base` along the pattern's parts from `next` on.
  /// @param linked  whether `base` lies behind a link
  void visit(fs::path base, std::size_t next, bool linked) {
    while (is_literal(next)) base /= parts_[next++];
    if (next == parts_.size()) return add_existing(base, files_);
    // With several ** the same folder and rest of the pattern are reached on many ways.
    if (!visited_.emplace(base.native(), next).second) return;
    if (linked && ++behind_links_ > kMostBehindLinks) {
      fail(ExitCode::data,
           "data.path: '{}' follows links into more than {} folders; valid: a pattern that matches "
           "fewer",
           pattern_, kMostBehindLinks);
    }
    std::error_code error;
    if (!base.empty() && !fs::is_directory(base, error)) return;
    const bool any_depth = parts_[next] == "**";
    if (any_depth && next + 1 == parts_.size()) return add_folder(base, files_);
    if (any_depth) visit(base, next + 1, linked);
    around_.push_back(identity(base));
    for (const fs::directory_entry& entry : open_folder(base)) {
      const fs::path name = entry.path().filename();
      if (any_depth) {
        if (!skipped(name.native()) && is_folder_below(entry)) visit(base / name, next, linked);
      } else if (matches(parts_[next].native(), name.native())) {
        const bool is_link = entry.is_symlink(error);
        if (is_link && leads_back(base / name)) continue;
        visit(base / name, next + 1, linked || is_link);
      }
    }
    around_.pop_back();
  }

  /// A folder's identity, which is equal for all of its names.
  using Identity = std::pair<dev_t, ino_t>;
  static Identity identity(const fs::path& path) {
    struct stat status {};
    if (::stat(path.empty() ? "." : path.c_str(), &status) != 0) return {};
    return {status.st_dev, status.st_ino};
  }
  /// Whether a link leads to a folder that is being walked, so that the walk would not end.
  bool leads_back(const fs::path& link) const {
    return std::ranges::find(around_, identity(link)) != around_.end();
  }

  const std::string& pattern_;
  Files& files_;
  std::vector<fs::path> parts_;
  std::set<std::pair<std::string, std::size_t>> visited_;
  std::vector<Identity> around_;
  std::size_t behind_links_ = 0;
};

// Refuses entries longer than a path of the system, which also bounds the parts of a pattern.
void check_length(const std::string& entry) {
  if (entry.size() < PATH_MAX) return;
  fail(ExitCode::data, "data.path: found a path of {} bytes; valid: fewer than {}", entry.size(),
       PATH_MAX);
}

std::vector<std::string> files_of(const std::string& entry) {
  check_length(entry);
  std::error_code error;
  const fs::file_status status = fs::status(entry, error);
  if (fs::is_regular_file(status)) return {entry};
  Files files;
  if (fs::is_directory(status)) {
    add_folder(entry, files);
    if (files.empty()) {
      fail(ExitCode::data,
           "data.path: folder '{}' holds no files (hidden ones and __pycache__ are left out)",
           entry);
    }
  } else if (fs::exists(status)) {
    fail(ExitCode::data, "data.path: '{}' is neither a regular file nor a folder", entry);
  } else if (!has_wildcard(entry)) {
    fail(ExitCode::data, "data.path: cannot read '{}': {}", entry,
         error ? error.message() : std::string("No such file or directory"));
  } else {
    Walk(entry, files).run();
    if (files.empty()) fail(ExitCode::data, "data.path: no file matches '{}'", entry);
  }
  return {files.begin(), files.end()};
}

}  // namespace

std::vector<std::string> find_files(const std::vector<std::string>& entries) {
  std::vector<std::string> files;
  for (const std::string& entry : entries) {
    const std::vector<std::string> found = files_of(entry);
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

std::string quoted(const std::vector<std::string>& entries) {
  std::string text;
  for (const std::string& entry : entries) {
    if (!text.empty()) text += ", ";
    text += "'" + entry + "'";
  }
  return text;
}

}  // namespace cadenza::data
