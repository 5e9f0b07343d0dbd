// SPDX-License-Identifier: Apache-2.0
// The output folder of a command, for one process at a time, and the folder of a run:
// experiment.yaml, metrics.jsonl, trace/, checkpoints/.
#pragma once

#include <cstdint>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/storage/new_file.hpp"

namespace cadenza::app {

/// A folder that is made if missing, and locked while the object lives. The kernel releases the
/// lock when the process ends, in any way. The file .lock in the folder carries the lock and names
/// its holder. A warning tells if the file system has no locks.
class OutputFolder {
 public:
  /// @throws Error(data) if the folder cannot be made, or another process writes into it
  explicit OutputFolder(const std::string& path);
  ~OutputFolder();
  OutputFolder(OutputFolder&& other) noexcept;
  OutputFolder& operator=(OutputFolder&& other) noexcept;

  const std::string& path() const { return place_.path(); }
  static std::string lock_of(const std::string& folder);  ///< path of the lock file
  /// Checks files and folders that will be written, folders with their contents.
  /// @param names  names in this folder
  /// @throws Error(data) if one exists but is a link, a pipe or a device
  void require_files(std::initializer_list<const char*> names) const;
  /// @throws Error(data) if the folder was removed, renamed or replaced
  void require() const { place_.require(); }

 private:
  /// @return whether this process holds the folder
  bool lock();
  void sign() const;

  storage::Place place_;
  int file_ = -1;
};

// --- The folder of a run ---

struct StepMetrics;

class RunFolder {
 public:
  /// Makes and locks the folder; renames an earlier run there to <folder>.1, .2, ...
  /// @throws Error(data), also if another run uses it or a link leads out of it
  static RunFolder create(const std::string& path, const config::Experiment& experiment);
  /// Names the folder without touching it (ranks other than 0).
  explicit RunFolder(std::string path) : path_(std::move(path)) {}

  std::string path() const { return path_; }
  std::string trace() const { return path_ + "/trace"; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  std::string metrics() const { return path_ + "/metrics.jsonl"; }
  std::string evaluation() const { return path_ + "/evaluation.json"; }

  /// Checks the folder that create() made.
  /// @throws Error(data) if the folder or its contents were removed, renamed or replaced
  void require() const;

  /// Appends and flushes one line. @throws Error(data), e.g. if the disk is full
  void append(const StepMetrics& metrics);

  /// Writes the results of `cadenza evaluate`. @throws Error(data)
  void write_evaluation(const std::string& json) const;

 private:
  std::string path_;
  std::optional<OutputFolder> held_;
  std::vector<storage::Place> places_;  ///< folders inside it
  std::ofstream metrics_;
};

}  // namespace cadenza::app
