// SPDX-License-Identifier: Apache-2.0
// A file that has its name only once it is whole.
#pragma once

#include <optional>
#include <string>
#include <string_view>

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

}  // namespace cadenza::storage
