// SPDX-License-Identifier: Apache-2.0
#include "paths.hpp"

#include <fnmatch.h>

#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>

#include "cadenza/base/error.hpp"

namespace cadenza::data {
namespace {

namespace fs = std::filesystem;

using Files = std::set<std::string>;  // byte order, each once

bool skipped(std::string_view name) {
  return name.starts_with('.') || name == "__pycache__";
}

bool has_wildcard(std::string_view text) {
  return text.find_first_of("*?[") != text.npos;
}

// An empty path is the working folder; names found in it stay without "./".
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

// Links to folders are not entered: they may lead back up.
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

// Walks from folder `base` along the pattern's components from `next` on.
void add_matches(const fs::path& base, fs::path::iterator next, fs::path::iterator end,
                 Files& files) {
  if (next != end && !has_wildcard(next->native())) {
    return add_matches(base / *next, std::next(next), end, files);
  }
  if (next == end) return add_existing(base, files);

  std::error_code error;
  if (!base.empty() && !fs::is_directory(base, error)) return;
  const bool any_depth = *next == "**";
  if (any_depth && std::next(next) == end) return add_folder(base, files);
  if (any_depth) add_matches(base, std::next(next), end, files);
  for (const fs::directory_entry& entry : open_folder(base)) {
    const fs::path name = entry.path().filename();
    if (any_depth) {
      if (!skipped(name.native()) && is_folder_below(entry)) {
        add_matches(base / name, next, end, files);
      }
    } else if (matches(next->native(), name.native())) {
      add_matches(base / name, std::next(next), end, files);
    }
  }
}

std::vector<std::string> files_of(const std::string& entry) {
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
    const fs::path pattern(entry);
    add_matches({}, pattern.begin(), pattern.end(), files);
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
