// SPDX-License-Identifier: Apache-2.0
// Writing files: a file that gets its name only when it is complete, and a path whose removal or
// replacement is noticed.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cadenza/storage/hdf5.hpp"

namespace cadenza::storage {

inline constexpr std::string_view kPartial = ".partial";

/// A new file that is called <path>.partial until finish(). Without finish() it is removed, except
/// when the process is killed. It replaces the leftover of another process, but follows no link.
class NewFile {
 public:
  /// Creates the partial file. @throws Error(data), as all members do
  explicit NewFile(std::string path, Protection protection = Protection::none);
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();

  File& file() { return *file_; }
  const std::string& path() const { return path_; }
  /// Closes the file and renames it to `path`, in place of an earlier file. It then survives even a
  /// crash of the node.
  void finish();

 private:
  std::string path_;
  std::string partial_;
  std::optional<File> file_;
};

/// Holds a file or folder against other processes that ask for it, where there is one.
class Lock {
 public:
  /// @throws Error(data) where another process holds it
  explicit Lock(const std::string& path);
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int descriptor_;
};

/// Waits until a file's bytes, or a folder's entries, are on disk. @throws Error(data)
void sync_to_disk(const std::string& path);

/// Writes a text file in the way of NewFile. @throws Error(data)
void write_whole(const std::string& path, std::string_view text);

// --- A path to which this process writes, with a check that it still leads to the same file ---

class Place {
 public:
  /// Remembers the file or folder to which `path` leads now.
  explicit Place(const std::string& path);
  /// Whether the path still leads there.
  bool holds() const { return way_.back().holds(); }
  /// Requires that the path still leads there. @throws Error(data) that names the outermost folder
  /// that is gone, if there is one, else the path
  void require() const;
  const std::string& path() const { return way_.back().path; }

 private:
  struct Node {
    std::string path;
    dev_t device = 0;
    ino_t inode = 0;  ///< 0: there was no such file

    bool holds() const;
  };
  std::vector<Node> way_;  ///< the folders of the path, outermost first, then the path itself
};

}  // namespace cadenza::storage
