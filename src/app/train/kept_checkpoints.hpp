// SPDX-License-Identifier: Apache-2.0
// The checkpoints of a run, of which the newest stay: run.checkpoint.keep.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

namespace cadenza::app {

class KeptCheckpoints {
 public:
  /// @param keep  files that stay; 0: all
  explicit KeptCheckpoints(std::int64_t keep) : keep_(keep) {}

  /// `path` is whole and on the disk: older ones that this run wrote, and no others, are removed.
  /// One that cannot be removed is a warning.
  void add(const std::string& path);

 private:
  std::int64_t keep_;
  std::deque<std::string> paths_;
};

}  // namespace cadenza::app
