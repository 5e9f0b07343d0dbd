// SPDX-License-Identifier: Apache-2.0
#include "app/train/checkpoints.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>
#include <system_error>

#include "app/files.hpp"
#include "app/run_folder.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/model/checkpoint.hpp"

namespace cadenza::app {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAttempt = "attempt-";  // named by jobscripts/chain.sh

/// Returns the folders in `parent` named `prefix` and a number, largest number first.
std::vector<std::string> numbered(const fs::path& parent, std::string_view prefix) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  std::error_code error;  // a missing or unreadable folder has none
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(prefix)) continue;
    std::int64_t number = 0;
    const char* last = name.data() + name.size();
    const auto [stop, wrong] = std::from_chars(name.data() + prefix.size(), last, number);
    std::error_code unseen;
    if (wrong == std::errc() && stop == last && fs::is_directory(entry->path(), unseen)) {
      found.emplace_back(number, entry->path().string());
    }
  }
  std::ranges::sort(found, std::greater());
  std::vector<std::string> paths;
  for (auto& [number, path] : found) paths.push_back(std::move(path));
  return paths;
}

/// Returns the checkpoints of the runs in these folders, newest first; equal steps in folder order.
std::vector<std::string> newest_first(const std::vector<std::string>& runs) {
  std::vector<std::string> paths;
  for (const std::string& run : runs) {
    const std::string below = RunFolder(run).checkpoints();
    std::error_code unseen;
    try {
      std::ranges::move(model::checkpoints_in(fs::is_directory(below, unseen) ? below : run),
                        std::back_inserter(paths));
    } catch (const Error& error) {
      spdlog::warn("skipped   {}", error.what());
    }
  }
  std::ranges::stable_sort(paths, std::greater(), [](const std::string& path) {
    return model::step_of(fs::path(path).filename().string());
  });
  return paths;
}

}  // namespace

std::vector<FoundCheckpoint> found_checkpoints(const std::string& folder) {
  const fs::path path = plain_path(folder);
  std::vector<std::string> runs = numbered(path, kAttempt);
  runs.insert(runs.begin(), path.string());
  std::vector<FoundCheckpoint> found;
  std::error_code unseen;
  if (fs::is_directory(path, unseen)) {
    for (std::string& own : newest_first(runs)) found.push_back({std::move(own), false});
  }
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  for (const std::string& run : numbered(parent, path.filename().string() + ".")) {
    for (std::string& earlier : newest_first({run})) found.push_back({std::move(earlier), true});
  }
  return found;
}

void KeptCheckpoints::add(const std::string& path) {
  paths_.push_back(path);
  while (keep_ > 0 && static_cast<std::int64_t>(paths_.size()) > keep_) {
    std::error_code error;
    std::filesystem::remove(paths_.front(), error);
    if (error) spdlog::warn("kept      {}: cannot be removed: {}", paths_.front(), error.message());
    paths_.pop_front();
  }
}

}  // namespace cadenza::app
