// SPDX-License-Identifier: Apache-2.0
// The checkpoints of a run: candidates for `train --from FOLDER`, and those that are kept
// (run.checkpoint.keep).
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace cadenza::app {

struct FoundCheckpoint {
  std::string path;
  bool of_earlier_run = false;  ///< in the same folder, which was renamed to FOLDER.N
};

/// Returns candidates in the order in which to try them, so that a damaged or missing one costs
/// some steps, but not the chain of jobs: first those in the folder of a run or of checkpoints,
/// newest first; or, in the folder of a chain, those of its runs attempt-0, attempt-1, ..., newest
/// first, for equal steps the later run's; then those of the runs FOLDER.N, last run first. Warns
/// if a folder cannot be read.
std::vector<FoundCheckpoint> found_checkpoints(const std::string& folder);

// --- Keeping the newest checkpoints: run.checkpoint.keep ---

class KeptCheckpoints {
 public:
  /// @param keep  number of files to keep; 0: all
  explicit KeptCheckpoints(std::int64_t keep) : keep_(keep) {}

  /// Adds a file that is complete and on disk, and removes older ones that this run wrote, no
  /// others. Warns if one cannot be removed.
  void add(const std::string& path);

 private:
  std::int64_t keep_;
  std::deque<std::string> paths_;
};

}  // namespace cadenza::app
