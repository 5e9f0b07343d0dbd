// SPDX-License-Identifier: Apache-2.0
#include "app/output_file.hpp"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "cadenza/base/error.hpp"

namespace cadenza::app {
namespace {

namespace fs = std::filesystem;

void require_folder(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  const fs::path folder = parent.empty() ? fs::path(".") : parent;
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    if (!error) error = std::make_error_code(std::errc::not_a_directory);
  } else if (access(folder.c_str(), W_OK | X_OK) != 0) {
    error = {errno, std::generic_category()};
  }
  if (!error) return;
  fail(ExitCode::data,
       "{}: cannot be written: {}; valid: --output with a file in an existing folder", path,
       error.message());
}

}  // namespace

void require_output(const std::string& path, const char* command, bool force,
                    const std::function<bool()>& written_by) {
  require_folder(path);
  std::error_code unseen;  // what is not there is no obstacle
  if (fs::is_symlink(path, unseen)) {
    fail(ExitCode::data, "{}: is a link to {}; valid: a place without a link", path,
         fs::read_symlink(path, unseen).string());
  }
  if (!fs::exists(path, unseen)) return;
  if (!fs::is_regular_file(path, unseen)) {
    fail(ExitCode::data, "{}: is not a regular file; valid: a file, or the name of a new one",
         path);
  }
  if (force) return;
  try {
    if (written_by()) return;
  } catch (const Error&) {
    // No reader of what the command writes takes it.
  }
  fail(ExitCode::data,
       "{}: exists and was not written by {}; valid: --output with a new name, or --force", path,
       command);
}

}  // namespace cadenza::app
