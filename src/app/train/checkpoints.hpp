// SPDX-License-Identifier: Apache-2.0
// The checkpoints of a run: those that `train --from FOLDER` may mean, and those that stay
// (run.checkpoint.keep).
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace cadenza::app {

struct FoundCheckpoint {
  std::string path;
  bool of_earlier_run = false;  ///< of a run that had the folder before and was renamed to FOLDER.N
};

/// In the order in which they are to be tried, so that one that is damaged or was never written
/// costs some steps but not the chain of jobs:
/// those in the folder of a run or of checkpoints, the newest first; in the folder of a chain those
/// of its runs attempt-0, attempt-1, ..., the newest first, of equal steps the later run's; then
/// those of the runs FOLDER.N, the last run first. A folder that cannot be read is a warning.
std::vector<FoundCheckpoint> found_checkpoints(const std::string& folder);

// The checkpoints of a run, of which the newest stay: run.checkpoint.keep.

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
