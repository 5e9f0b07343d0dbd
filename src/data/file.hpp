// SPDX-License-Identifier: Apache-2.0
// Files of a corpus: finds those that data.path names, and reads them by position or mapped into
// memory (POSIX).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cadenza::data {

/// Present size of the file at `path` in bytes. @throws Error(data) when it is missing or no
/// regular file.
std::int64_t file_size(const std::string& path);

/// Checks that `path` holds `expected` bytes. @throws Error(data) naming both sizes.
void check_size(const std::string& path, std::int64_t expected);

/// An open file, closed by the destructor.
class File {
 public:
  File() = default;
  /// @throws Error(data) with the system's reason.
  explicit File(const std::string& path);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int descriptor() const { return descriptor_; }
  /// Present size in bytes.
  std::int64_t size() const;
  /// Fills `out` from byte `offset` on. @throws Error(data) when the file ends before.
  void read(std::int64_t offset, std::span<unsigned char> out) const;

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// A whole file mapped into memory; pages are loaded as they are read.
class MappedFile {
 public:
  /// @throws Error(data) with the system's reason.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const unsigned char> bytes() const { return bytes_; }

 private:
  std::string path_;
  std::span<const unsigned char> bytes_;
};

// --- From entries of data.path to files ---

/// Finds the files that `entries` name, entry by entry. An entry is
/// - a file: itself;
/// - a folder: every regular file below it;
/// - a pattern of * ? [..] and ** (any number of folders): every file that matches, and the files
///   of every folder that matches.
/// The files of a folder or pattern are in byte order of their paths, each once. Below a folder and
/// behind a wildcard, hidden names (.x) and __pycache__ are left out; a wildcard that begins with a
/// dot matches hidden names. Links to folders are followed where a wildcard other than ** matches
/// them, unless they lead back to a folder on the way to them.
/// @throws Error(data) naming the entry that does not exist, matches nothing or cannot be read.
std::vector<std::string> find_files(const std::vector<std::string>& entries);

/// The entries for a message: 'a', 'b'.
std::string quoted(const std::vector<std::string>& entries);

}  // namespace cadenza::data
