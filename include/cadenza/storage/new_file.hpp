// SPDX-License-Identifier: Apache-2.0
// Files that are written: one that has its name only once it is whole, and a path whose removal or
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

/// Until finish() the file is called <path>.partial; without it nothing stays, but for that file
/// where the process is killed. What another process left there is replaced, but no link is
/// followed.
class NewFile {
 public:
  /// @throws Error(data), as all members
  explicit NewFile(std::string path, Protection protection = Protection::none);
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();

  File& file() { return *file_; }
  const std::string& path() const { return path_; }
  /// Closes the file and gives it its name, in place of an earlier one. What has its name then
  /// survives a crash of the node too.
  void finish();

 private:
  std::string path_;
  std::string partial_;
  std::optional<File> file_;
};

/// The same of a file of text. @throws Error(data)
void write_whole(const std::string& path, std::string_view text);

// A path to what this process writes: noticed when it is removed, renamed or replaced meanwhile.

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
