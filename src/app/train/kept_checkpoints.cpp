// SPDX-License-Identifier: Apache-2.0
#include "app/train/kept_checkpoints.hpp"

#include <spdlog/spdlog.h>

#include <filesystem>

namespace cadenza::app {

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
